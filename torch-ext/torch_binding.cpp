// The operators as PyTorch knows them: schemas with their mutation marks, and kernels that fill a record,
// check it and run it. LibTorch's stable ABI only, so that one object serves every torch from 2.10 on.
#include "old_libstdcxx.h"  // first

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../csrc/python/direct.h"
#include "../csrc/run.h"

#ifdef __linux__
// glibc 2.32 added this variable and libstdc++'s reference counts read it; a definition of our own, for this
// library alone, keeps older glibcs in. 0: there may be more than one thread.
extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}
#endif

namespace {

using edge_ops::DeviceType;
using edge_ops::DType;
using torch::headeronly::ScalarType;
using Input = torch::stable::Tensor;
using MaybeInput = std::optional<torch::stable::Tensor>;

void require(bool condition, const char* op, const char* problem) {
  if (!condition) throw std::runtime_error(std::string("edge_ops.") + op + ": " + problem);
}

DType dtype_of(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float:
      return DType::kFloat32;
    case ScalarType::BFloat16:
      return DType::kBFloat16;
    case ScalarType::Half:
      return DType::kFloat16;
    case ScalarType::Int:
      return DType::kInt32;
    case ScalarType::Long:
      return DType::kInt64;
    default:
      return DType::kOther;
  }
}

edge_ops::Tensor view(const Input& t, const char* op) {
  edge_ops::Tensor result;
  const int64_t rank = t.dim();
  require(rank <= edge_ops::kMaxRank, op, "a tensor has more than 8 dimensions");
  result.rank = static_cast<int32_t>(rank);
  const auto sizes = t.sizes(), strides = t.strides();
  for (int64_t d = 0; d < rank; d++) {
    result.shape[d] = sizes[d];
    result.stride[d] = strides[d];
  }
  result.dtype = dtype_of(t.scalar_type());
  result.device.type = t.is_cpu() ? DeviceType::kCpu : t.is_cuda() ? DeviceType::kCuda : DeviceType::kOther;
  result.device.index = t.is_cpu() ? 0 : t.get_device_index();
  result.data = t.data_ptr();
  return result;
}

edge_ops::Tensor view(const MaybeInput& t, const char* op) { return t ? view(*t, op) : edge_ops::Tensor{}; }

template <class Op>
void run(const Op& op, const edge_ops::Tensor& rows, const char* name) {
  const char* problem = edge_ops::check(op);
  require(problem == nullptr, name, problem);
  problem = edge_ops::run(op, edge_ops::python::current_stream(rows.device));
  require(problem == nullptr, name, problem);
}

// A new contiguous tensor like x, its last dimension divided.
Input new_rows(const Input& x, int64_t divisor, const char* op) {
  const auto sizes = x.sizes();
  require(!sizes.empty(), op, "x: must have at least one dimension");
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape.back() /= divisor;
  return torch::stable::new_empty(x, shape);
}

void rms_norm_out(Input& out, const Input& x, const MaybeInput& weight, double eps, double weight_offset) {
  const char* name = "rms_norm";
  const edge_ops::RmsNorm op{view(x, name), view(weight, name), view(out, name), static_cast<float>(eps),
                             static_cast<float>(weight_offset)};
  run(op, op.x, name);
}

Input rms_norm(const Input& x, const MaybeInput& weight, double eps, double weight_offset) {
  Input out = new_rows(x, 1, "rms_norm");
  rms_norm_out(out, x, weight, eps, weight_offset);
  return out;
}

void fused_add_rms_norm(Input& x, Input& residual, const MaybeInput& weight, double eps, double weight_offset) {
  const char* name = "fused_add_rms_norm";
  const edge_ops::FusedAddRmsNorm op{view(x, name), view(residual, name), view(weight, name), static_cast<float>(eps),
                                     static_cast<float>(weight_offset)};
  run(op, op.x, name);
}

template <edge_ops::Gate GATE>
void gated_out(Input& out, const Input& x) {
  const char* name = GATE == edge_ops::Gate::kSilu ? "silu_and_mul" : "gelu_tanh_and_mul";
  const edge_ops::GatedActivation op{view(x, name), view(out, name), GATE};
  run(op, op.x, name);
}

template <edge_ops::Gate GATE>
Input gated(const Input& x) {
  Input out = new_rows(x, 2, "gated activation");
  gated_out<GATE>(out, x);
  return out;
}

void silu_and_mul_out(Input& out, const Input& x) { gated_out<edge_ops::Gate::kSilu>(out, x); }
void gelu_tanh_and_mul_out(Input& out, const Input& x) { gated_out<edge_ops::Gate::kGeluTanh>(out, x); }
Input silu_and_mul(const Input& x) { return gated<edge_ops::Gate::kSilu>(x); }
Input gelu_tanh_and_mul(const Input& x) { return gated<edge_ops::Gate::kGeluTanh>(x); }

const edge_ops::Tensor& rows_of(const edge_ops::QkRope& op) { return op.query.in.present() ? op.query.in : op.key.in; }

void rotary_embedding(const Input& positions, Input& query, MaybeInput key, const Input& cos_sin_cache,
                      bool interleaved) {
  const char* name = "rotary_embedding";
  const edge_ops::Tensor q = view(query, name), k = view(key, name), none{};
  const edge_ops::QkRope op{view(positions, name),
                            view(cos_sin_cache, name),
                            {q, q, none},
                            {k, k, none},
                            0.0f,
                            0.0f,
                            false,
                            interleaved,
                            false};
  run(op, rows_of(op), name);
}

void fused_qk_norm_rope_out(MaybeInput query_out, MaybeInput key_out, const Input& positions, const MaybeInput& query,
                            const MaybeInput& key, const MaybeInput& q_weight, const MaybeInput& k_weight,
                            const Input& cos_sin_cache, double eps, double weight_offset, bool interleaved,
                            bool round_normalized) {
  const char* name = "fused_qk_norm_rope";
  const edge_ops::QkRope op{view(positions, name),
                            view(cos_sin_cache, name),
                            {view(query, name), view(query_out, name), view(q_weight, name)},
                            {view(key, name), view(key_out, name), view(k_weight, name)},
                            static_cast<float>(eps),
                            static_cast<float>(weight_offset),
                            true,
                            interleaved,
                            round_normalized};
  require(op.query.in.present() == op.query.out.present() && op.key.in.present() == op.key.out.present(), name,
          "query_out, key_out: must be given exactly where query and key are");
  run(op, rows_of(op), name);
}

void fused_qk_norm_rope(const Input& positions, MaybeInput query, MaybeInput key, const MaybeInput& q_weight,
                        const MaybeInput& k_weight, const Input& cos_sin_cache, double eps, double weight_offset,
                        bool interleaved, bool round_normalized) {
  fused_qk_norm_rope_out(query, key, positions, query, key, q_weight, k_weight, cos_sin_cache, eps, weight_offset,
                         interleaved, round_normalized);
}

void implement(torch::stable::detail::StableLibrary& m) {
  m.impl("rms_norm", TORCH_BOX(&rms_norm));
  m.impl("rms_norm_out", TORCH_BOX(&rms_norm_out));
  m.impl("fused_add_rms_norm", TORCH_BOX(&fused_add_rms_norm));
  m.impl("silu_and_mul", TORCH_BOX(&silu_and_mul));
  m.impl("silu_and_mul_out", TORCH_BOX(&silu_and_mul_out));
  m.impl("gelu_tanh_and_mul", TORCH_BOX(&gelu_tanh_and_mul));
  m.impl("gelu_tanh_and_mul_out", TORCH_BOX(&gelu_tanh_and_mul_out));
  m.impl("rotary_embedding", TORCH_BOX(&rotary_embedding));
  m.impl("fused_qk_norm_rope", TORCH_BOX(&fused_qk_norm_rope));
  m.impl("fused_qk_norm_rope_out", TORCH_BOX(&fused_qk_norm_rope_out));
}

}  // namespace

// The namespace is a macro of the build; these make it a token before the library macros paste it.
#define EDGE_OPS_LIBRARY(name, m) STABLE_TORCH_LIBRARY(name, m)
#define EDGE_OPS_LIBRARY_IMPL(name, key, m) STABLE_TORCH_LIBRARY_IMPL(name, key, m)

EDGE_OPS_LIBRARY(TORCH_EXTENSION_NAME, m) {
  m.def("rms_norm(Tensor x, Tensor? weight, float eps, float weight_offset) -> Tensor");
  m.def("rms_norm_out(Tensor(a!) out, Tensor x, Tensor? weight, float eps, float weight_offset) -> ()");
  m.def("fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual, Tensor? weight, float eps, float weight_offset) -> ()");
  m.def("silu_and_mul(Tensor x) -> Tensor");
  m.def("silu_and_mul_out(Tensor(a!) out, Tensor x) -> ()");
  m.def("gelu_tanh_and_mul(Tensor x) -> Tensor");
  m.def("gelu_tanh_and_mul_out(Tensor(a!) out, Tensor x) -> ()");
  m.def(
      "rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!)? key, Tensor cos_sin_cache, "
      "bool interleaved) -> ()");
  m.def(
      "fused_qk_norm_rope(Tensor positions, Tensor(a!)? query, Tensor(b!)? key, Tensor? q_weight, Tensor? k_weight, "
      "Tensor cos_sin_cache, float eps, float weight_offset, bool interleaved, bool round_normalized) -> ()");
  m.def(
      "fused_qk_norm_rope_out(Tensor(a!)? query_out, Tensor(b!)? key_out, Tensor positions, Tensor? query, "
      "Tensor? key, Tensor? q_weight, Tensor? k_weight, Tensor cos_sin_cache, float eps, float weight_offset, "
      "bool interleaved, bool round_normalized) -> ()");
}

EDGE_OPS_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CPU, m) { implement(m); }
#ifdef CUDA_KERNEL
EDGE_OPS_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CUDA, m) { implement(m); }
#endif
