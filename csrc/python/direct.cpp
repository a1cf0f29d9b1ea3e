// The direct route: the six operators as C functions on DLPack's C exchange API.
//
// A call whose arguments are plain tensors, in eager mode with nothing watching, is parsed, checked and run
// here. Everything else, mistakes included, goes to the Python function of the same name with the very
// same arguments: it picks the dispatcher or the reference, or says what is wrong.
#include "direct.h"

#include <string.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <initializer_list>

#include "../cpu/cpu.h"
#include "../run.h"
#include "pytorch.h"

namespace edge_ops {
namespace python {
namespace {

// --- arguments --------------------------------------------------------------------------

constexpr int kMaxArguments = 12;

struct Signature {
  int positional, required;
  const char* text;  // as in Python, for inspect.signature
  const char* names[kMaxArguments + 1];
  PyObject* interned[kMaxArguments];
  int count;
};

enum Operator { kRmsNorm, kFusedAddRmsNorm, kSilu, kGeluTanh, kRotary, kQkNormRope, kOperators };

Signature signatures[kOperators] = {
    {3,
     2,
     "(x, weight, eps=1e-06, *, weight_offset=0.0, out=None)",
     {"x", "weight", "eps", "weight_offset", "out", nullptr},
     {},
     0},
    {4,
     3,
     "(x, residual, weight, eps=1e-06, *, weight_offset=0.0)",
     {"x", "residual", "weight", "eps", "weight_offset", nullptr},
     {},
     0},
    {1, 1, "(x, *, out=None)", {"x", "out", nullptr}, {}, 0},
    {1, 1, "(x, *, out=None)", {"x", "out", nullptr}, {}, 0},
    {4,
     4,
     "(positions, query, key, cos_sin_cache, *, interleaved=False)",
     {"positions", "query", "key", "cos_sin_cache", "interleaved", nullptr},
     {},
     0},
    {7,
     6,
     "(positions, query, key, q_weight, k_weight, cos_sin_cache, eps=1e-06, *, weight_offset=0.0, "
     "interleaved=False, round_normalized=True, query_out=None, key_out=None)",
     {"positions", "query", "key", "q_weight", "k_weight", "cos_sin_cache", "eps", "weight_offset", "interleaved",
      "round_normalized", "query_out", "key_out", nullptr},
     {},
     0},
};

// Puts the arguments in their slots (nullptr: not given). False where they do not fit the signature.
bool parse(const Signature& signature, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, PyObject** slots) {
  if (nargs > signature.positional) return false;
  int i = 0;
  for (; i < nargs; i++) slots[i] = args[i];
  for (; i < signature.count; i++) slots[i] = nullptr;
  const Py_ssize_t keywords = kwnames != nullptr ? PyTuple_Size(kwnames) : 0;
  for (Py_ssize_t k = 0; k < keywords; k++) {
    PyObject* name = PyTuple_GetItem(kwnames, k);
    int slot = 0;
    while (slot < signature.count && signature.interned[slot] != name) slot++;
    if (slot == signature.count) {  // a name that was not interned: compare the text
      slot = 0;
      while (slot < signature.count && PyUnicode_CompareWithASCIIString(name, signature.names[slot]) != 0) slot++;
    }
    if (slot == signature.count || slots[slot] != nullptr) return false;
    slots[slot] = args[nargs + k];
  }
  for (i = 0; i < signature.required; i++) {
    if (slots[i] == nullptr) return false;
  }
  return true;
}

DType dtype_of(DLDataType dtype) {
  if (dtype.lanes != 1) return DType::kOther;
  switch (dtype.code << 8 | dtype.bits) {
    case kDLFloat << 8 | 32:
      return DType::kFloat32;
    case kDLFloat << 8 | 16:
      return DType::kFloat16;
    case kDLBfloat << 8 | 16:
      return DType::kBFloat16;
    case kDLInt << 8 | 32:
      return DType::kInt32;
    case kDLInt << 8 | 64:
      return DType::kInt64;
    default:
      return DType::kOther;
  }
}

Device device_of(DLDevice device) {
  Device result;
  result.type = device.type == kDLCPU    ? DeviceType::kCpu
                : device.type == kDLCUDA ? DeviceType::kCuda
                                         : DeviceType::kOther;
  result.index = device.type == kDLCPU ? 0 : device.id;
  return result;
}

// One call's arguments on their way into a record. The first refusal stays in `refusal`.
class Arguments {
 public:
  const char* refusal = nullptr;

  explicit Arguments(PyObject** slots) : slots_(slots) {}

  bool given(int slot) const { return slots_[slot] != nullptr && slots_[slot] != Py_None; }

  void tensor(int slot, Tensor* out) {
    if (refusal != nullptr || !given(slot)) return;
    PyObject* object = slots_[slot];
    PyTypeObject* type = Py_TYPE(object);
    if (type != pytorch.tensor && type != pytorch.parameter) return refuse("an argument is not a plain torch.Tensor");
    DLTensor view;
    if (pytorch.dlpack->dltensor_from_py_object_no_sync(object, &view) != 0) {
      PyErr_Clear();
      return refuse("a tensor has no memory of its own (a wrapper, or not dense)");
    }
    if (view.ndim > kMaxRank) return refuse("a tensor has more than 8 dimensions");
    out->rank = view.ndim;
    out->dtype = dtype_of(view.dtype);
    out->device = device_of(view.device);
    out->data = view.data;
    bool empty = false;
    for (int d = 0; d < view.ndim; d++) {
      out->shape[d] = view.shape[d];
      out->stride[d] = view.strides[d];
      empty = empty || view.shape[d] == 0;
    }
    if (out->data == nullptr && !empty) return refuse("a tensor has no memory of its own (a wrapper, or not dense)");
    tensors_[count_++] = object;
  }

  void number(int slot, float missing, float* out) {
    *out = missing;
    if (refusal != nullptr || slots_[slot] == nullptr) return;
    const double value = PyFloat_AsDouble(slots_[slot]);
    if (value == -1.0 && PyErr_Occurred()) {
      PyErr_Clear();
      return refuse("a number is not a number");
    }
    *out = static_cast<float>(value);
  }

  void flag(int slot, bool missing, bool* out) {
    *out = missing;
    if (refusal != nullptr || slots_[slot] == nullptr) return;
    const int value = PyObject_IsTrue(slots_[slot]);
    if (value < 0) {
      PyErr_Clear();
      return refuse("a flag has no truth value");
    }
    *out = value != 0;
  }

  void checked(const char* problem) {
    if (refusal == nullptr) refusal = problem;
  }

  // Whether this thread may go on without the dispatcher: nothing watches, no gradient is wanted.
  void unwatched() {
    if (refusal != nullptr) return;
    if (count_ == 0) return refuse("no tensor was given");
    refusal = watcher(tensors_[0]);
    if (refusal != nullptr) return;
    if (aoti_torch_grad_mode_is_enabled()) {
      grad_mode_ = true;
      for (int i = 0; i < count_; i++) {
        PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(tensors_[i]));
        PyObject* answer = pytorch.get(pytorch.requires_grad, tensors_[i], type);
        const bool plain = answer == Py_False;
        Py_XDECREF(answer);
        if (!plain) {
          PyErr_Clear();
          return refuse("a tensor requires grad");
        }
      }
    }
  }

  void* stream(const Device& device) {
    void* result = nullptr;
    if (device.type == DeviceType::kCuda && pytorch.dlpack->current_work_stream(kDLCUDA, device.index, &result) != 0) {
      PyErr_Clear();
      refuse("the current stream cannot be had");
    }
    return result;
  }

  // Autograd must notice that a tensor it saved was overwritten. Without grad mode nothing is being saved,
  // and the question whether something was saved earlier costs as much as the call.
  bool mark_written(std::initializer_list<PyObject*> written) const {
    if (!grad_mode_) return true;
    for (PyObject* tensor : written) {
      if (tensor == nullptr || tensor == Py_None) continue;
      PyObject* list = PyTuple_Pack(1, tensor);
      PyObject* done = list != nullptr ? call_one(pytorch.increment_version, list) : nullptr;
      Py_XDECREF(list);
      Py_XDECREF(done);
      if (done == nullptr) return false;
    }
    return true;
  }

 private:
  void refuse(const char* why) { refusal = why; }

  PyObject** slots_;
  PyObject* tensors_[kMaxArguments];
  int count_ = 0;
  bool grad_mode_ = false;
};

PyObject* new_reference(PyObject* object) {
  if (object == nullptr) object = Py_None;
  Py_INCREF(object);
  return object;
}

PyObject* pair(PyObject* a, PyObject* b) {
  return PyTuple_Pack(2, a != nullptr ? a : Py_None, b != nullptr ? b : Py_None);
}

// Above so many elements the interpreter's lock is released while the kernel runs: other Python threads
// gain more than the 0.1 us that it costs.
constexpr int64_t kReleaseElements = 1 << 16;

template <class Op>
bool execute(const Op& op, int64_t elements, void* stream) {
  const char* problem;
  if (elements >= kReleaseElements) {
    PyThreadState* state = PyEval_SaveThread();
    problem = run(op, stream);
    PyEval_RestoreThread(state);
  } else {
    problem = run(op, stream);
  }
  if (problem != nullptr) PyErr_Format(PyExc_RuntimeError, "edge_ops: %s", problem);
  return problem == nullptr;
}

// --- the operators ----------------------------------------------------------------------
// Each fills its record from the slots and runs it, unless `dry`. nullptr with no Python error set means
// "not here": `arguments.refusal` says why. Numbers and flags are read before tensors: reading them may run Python
// code (__float__, __bool__), which may resize a tensor or free its memory.

PyObject* rms_norm(PyObject** slots, Arguments& arguments, bool dry) {
  RmsNorm op;
  arguments.number(2, 1e-6f, &op.eps);
  arguments.number(3, 0.0f, &op.weight_offset);
  arguments.tensor(0, &op.x);
  arguments.tensor(1, &op.weight);
  const bool fresh = !arguments.given(4);
  arguments.tensor(4, &op.out);
  arguments.unwatched();
  if (arguments.refusal == nullptr) arguments.checked(fresh ? check_input(op) : check(op));
  void* stream = arguments.refusal == nullptr ? arguments.stream(op.x.device) : nullptr;
  if (arguments.refusal != nullptr || dry) return nullptr;
  PyObject* result = fresh ? allocate(op.x, op.x.size(1), &op.out) : new_reference(slots[4]);
  if (result == nullptr) return nullptr;
  if (!execute(op, op.x.numel(), stream) || (!fresh && !arguments.mark_written({slots[4]}))) Py_CLEAR(result);
  return result;
}

PyObject* fused_add_rms_norm(PyObject** slots, Arguments& arguments, bool dry) {
  FusedAddRmsNorm op;
  arguments.number(3, 1e-6f, &op.eps);
  arguments.number(4, 0.0f, &op.weight_offset);
  arguments.tensor(0, &op.x);
  arguments.tensor(1, &op.residual);
  arguments.tensor(2, &op.weight);
  arguments.unwatched();
  if (arguments.refusal == nullptr) arguments.checked(check(op));
  void* stream = arguments.refusal == nullptr ? arguments.stream(op.x.device) : nullptr;
  if (arguments.refusal != nullptr || dry) return nullptr;
  if (!execute(op, op.x.numel(), stream) || !arguments.mark_written({slots[0], slots[1]})) return nullptr;
  return pair(slots[0], slots[1]);
}

PyObject* gated_activation(PyObject** slots, Arguments& arguments, bool dry, Gate gate) {
  GatedActivation op;
  op.gate = gate;
  arguments.tensor(0, &op.x);
  const bool fresh = !arguments.given(1);
  arguments.tensor(1, &op.out);
  arguments.unwatched();
  if (arguments.refusal == nullptr) arguments.checked(fresh ? check_input(op) : check(op));
  void* stream = arguments.refusal == nullptr ? arguments.stream(op.x.device) : nullptr;
  if (arguments.refusal != nullptr || dry) return nullptr;
  PyObject* result = fresh ? allocate(op.x, op.x.size(1) / 2, &op.out) : new_reference(slots[1]);
  if (result == nullptr) return nullptr;
  if (!execute(op, op.x.numel(), stream) || (!fresh && !arguments.mark_written({slots[1]}))) Py_CLEAR(result);
  return result;
}

PyObject* silu_and_mul(PyObject** slots, Arguments& arguments, bool dry) {
  return gated_activation(slots, arguments, dry, Gate::kSilu);
}

PyObject* gelu_tanh_and_mul(PyObject** slots, Arguments& arguments, bool dry) {
  return gated_activation(slots, arguments, dry, Gate::kGeluTanh);
}

int64_t numel_of(const QkRope::Heads& heads) { return heads.in.present() ? heads.in.numel() : 0; }

PyObject* rotary_embedding(PyObject** slots, Arguments& arguments, bool dry) {
  QkRope op;
  arguments.flag(4, false, &op.interleaved);
  arguments.tensor(0, &op.positions);
  arguments.tensor(1, &op.query.in);
  arguments.tensor(2, &op.key.in);
  arguments.tensor(3, &op.cos_sin_cache);
  op.query.out = op.query.in;
  op.key.out = op.key.in;
  op.eps = op.weight_offset = 0.0f;
  op.normalize = op.round_normalized = false;
  arguments.unwatched();
  if (!arguments.given(1)) arguments.checked("query: must be given");
  if (arguments.refusal == nullptr) arguments.checked(check(op));
  void* stream = arguments.refusal == nullptr ? arguments.stream(op.query.in.device) : nullptr;
  if (arguments.refusal != nullptr || dry) return nullptr;
  if (!execute(op, numel_of(op.query) + numel_of(op.key), stream)) return nullptr;
  if (!arguments.mark_written({slots[1], slots[2]})) return nullptr;
  return pair(slots[1], slots[2]);
}

PyObject* fused_qk_norm_rope(PyObject** slots, Arguments& arguments, bool dry) {
  QkRope op;
  arguments.number(6, 1e-6f, &op.eps);
  arguments.number(7, 0.0f, &op.weight_offset);
  arguments.flag(8, false, &op.interleaved);
  arguments.flag(9, true, &op.round_normalized);
  arguments.tensor(0, &op.positions);
  arguments.tensor(1, &op.query.in);
  arguments.tensor(2, &op.key.in);
  arguments.tensor(3, &op.query.weight);
  arguments.tensor(4, &op.key.weight);
  arguments.tensor(5, &op.cos_sin_cache);
  const bool query_out = arguments.given(10), key_out = arguments.given(11);
  op.query.out = op.query.in;
  op.key.out = op.key.in;
  arguments.tensor(10, &op.query.out);
  arguments.tensor(11, &op.key.out);
  op.normalize = true;
  arguments.unwatched();
  if (query_out && !arguments.given(1)) arguments.checked("query_out: must be None where query is");
  if (key_out && !arguments.given(2)) arguments.checked("key_out: must be None where key is");
  if (arguments.refusal == nullptr) arguments.checked(check(op));
  const Tensor& first = op.query.in.present() ? op.query.in : op.key.in;
  void* stream = arguments.refusal == nullptr ? arguments.stream(first.device) : nullptr;
  if (arguments.refusal != nullptr || dry) return nullptr;
  PyObject* query = query_out ? slots[10] : slots[1];
  PyObject* key = key_out ? slots[11] : slots[2];
  if (!execute(op, numel_of(op.query) + numel_of(op.key), stream)) return nullptr;
  if (!arguments.mark_written({query, key})) return nullptr;
  return pair(query, key);
}

using Implementation = PyObject* (*)(PyObject**, Arguments&, bool);

constexpr Implementation implementations[kOperators] = {rms_norm,          fused_add_rms_norm, silu_and_mul,
                                                        gelu_tanh_and_mul, rotary_embedding,   fused_qk_norm_rope};
constexpr const char* names[kOperators] = {"rms_norm",          "fused_add_rms_norm", "silu_and_mul",
                                           "gelu_tanh_and_mul", "rotary_embedding",   "fused_qk_norm_rope"};

PyObject* call_fallback(PyObject* fallback, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* tuple = PyTuple_New(nargs);
  PyObject* dict = kwnames != nullptr ? PyDict_New() : nullptr;
  PyObject* result = nullptr;
  if (tuple != nullptr && (kwnames == nullptr || dict != nullptr)) {
    bool filled = true;
    for (Py_ssize_t i = 0; i < nargs; i++) PyTuple_SetItem(tuple, i, new_reference(args[i]));
    for (Py_ssize_t k = 0; kwnames != nullptr && k < PyTuple_Size(kwnames); k++) {
      filled = filled && PyDict_SetItem(dict, PyTuple_GetItem(kwnames, k), args[nargs + k]) == 0;
    }
    if (filled) result = PyObject_Call(fallback, tuple, dict);
  }
  Py_XDECREF(tuple);
  Py_XDECREF(dict);
  return result;
}

// The Python functions, set once by bind. The C functions' self is the module, so that they pickle by name.
PyObject* fallbacks[kOperators];

template <int OP>
PyObject* call(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* slots[kMaxArguments];
  if (parse(signatures[OP], args, nargs, kwnames, slots)) {
    Arguments arguments(slots);
    PyObject* result = implementations[OP](slots, arguments, false);
    if (result != nullptr || arguments.refusal == nullptr) return result;
  }
  return call_fallback(fallbacks[OP], args, nargs, kwnames);
}

template <int OP>
PyMethodDef method() {
  return {names[OP], reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call<OP>)),
          METH_FASTCALL | METH_KEYWORDS, nullptr};
}

PyMethodDef methods[kOperators] = {method<kRmsNorm>(),  method<kFusedAddRmsNorm>(), method<kSilu>(),
                                   method<kGeluTanh>(), method<kRotary>(),          method<kQkNormRope>()};

int operator_named(const char* name) {
  for (int op = 0; op < kOperators; op++) {
    if (strcmp(name, names[op]) == 0) return op;
  }
  PyErr_Format(PyExc_ValueError, "no operator %s", name);
  return -1;
}

}  // namespace

PyObject* bind(PyObject* self, PyObject* args) {
  const char* name;
  PyObject* fallback;
  const char* documentation;
  if (!PyArg_ParseTuple(args, "sOs", &name, &fallback, &documentation)) return nullptr;
  const int op = operator_named(name);
  if (op < 0 || !look_up_torch()) return nullptr;
  Signature& signature = signatures[op];
  for (signature.count = 0; signature.names[signature.count] != nullptr; signature.count++) {
    signature.interned[signature.count] = PyUnicode_InternFromString(signature.names[signature.count]);
  }
  // The docstring is the Python function's, behind the signature line that inspect reads.
  PyObject* text = PyUnicode_FromFormat("%s%s\n--\n\n%s", name, signature.text, documentation);
  PyObject* bytes = text != nullptr ? PyUnicode_AsUTF8String(text) : nullptr;
  Py_XDECREF(text);
  if (bytes == nullptr) return nullptr;
  methods[op].ml_doc = PyBytes_AsString(bytes);  // `bytes` lives as long as the function: forever
  PyObject* module = PyObject_GetAttrString(fallback, "__module__");
  PyObject* function = module != nullptr ? PyCFunction_NewEx(&methods[op], self, module) : nullptr;
  Py_XDECREF(module);
  if (function != nullptr) fallbacks[op] = new_reference(fallback);
  return function;
}

PyObject* probe(PyObject*, PyObject* args) {
  const char* name;
  PyObject *positional, *keywords;
  if (!PyArg_ParseTuple(args, "sO!O!", &name, &PyTuple_Type, &positional, &PyDict_Type, &keywords)) return nullptr;
  const int op = operator_named(name);
  if (op < 0) return nullptr;
  PyObject* values[2 * kMaxArguments];
  PyObject* slots[kMaxArguments];
  const Py_ssize_t nargs = PyTuple_Size(positional), keyword_count = PyDict_Size(keywords);
  if (nargs > kMaxArguments || keyword_count > kMaxArguments) return PyUnicode_FromString("too many arguments");
  for (Py_ssize_t i = 0; i < nargs; i++) values[i] = PyTuple_GetItem(positional, i);
  PyObject* kwnames = PyTuple_New(keyword_count);
  if (kwnames == nullptr) return nullptr;
  PyObject *key, *value;
  for (Py_ssize_t at = 0, k = 0; PyDict_Next(keywords, &at, &key, &value); k++) {
    PyTuple_SetItem(kwnames, k, new_reference(key));
    values[nargs + k] = value;
  }
  const bool fits = parse(signatures[op], values, nargs, kwnames, slots);
  Py_DECREF(kwnames);
  if (!fits) return PyUnicode_FromString("the arguments do not fit the signature");
  Arguments arguments(slots);
  implementations[op](slots, arguments, true);
  if (PyErr_Occurred()) return nullptr;
  return arguments.refusal == nullptr ? new_reference(nullptr) : PyUnicode_FromString(arguments.refusal);
}

void* current_stream(const Device& device) {
  void* stream = nullptr;
  if (device.type == DeviceType::kCuda && pytorch.dlpack != nullptr) {
    pytorch.dlpack->current_work_stream(kDLCUDA, device.index, &stream);
  }
  return stream;
}

}  // namespace python
}  // namespace edge_ops
