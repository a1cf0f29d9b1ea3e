// What the direct route asks of PyTorch from C: its objects, looked up once at import, and the calls on them.
#pragma once

#include "../ops/tensor.h"
#include "dlpack.h"
#include "limited_api.h"

namespace edge_ops {
namespace python {

struct Torch {
  const DLPackExchangeAPI* dlpack = nullptr;
  PyTypeObject* tensor = nullptr;
  PyTypeObject* parameter = nullptr;
  PyObject* has_torch_function = nullptr;  // torch._C._has_torch_function_unary
  PyObject* is_tracing = nullptr;          // torch._C._is_tracing
  PyObject* increment_version = nullptr;   // torch._C._increment_version
  PyObject* adopt_tensors = nullptr;       // torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs
  PyObject* dispatch_modes = nullptr;      // torch.utils._python_dispatch.__dict__
  PyObject* profiler = nullptr;            // torch.autograd.profiler.__dict__
  PyObject* requires_grad = nullptr;       // torch._C.TensorBase.requires_grad, a descriptor, and its getter:
  descrgetfunc get = nullptr;              // half the price of an attribute look-up
  PyObject* in_dispatch_mode = nullptr;    // the names below, interned
  PyObject* profiler_enabled = nullptr;
};

extern Torch pytorch;

// Fills `pytorch` where it is not yet. False with a Python error set where this PyTorch lacks something.
bool look_up_torch();

// Calls a function of one argument without building an argument tuple.
inline PyObject* call_one(PyObject* function, PyObject* argument) {
  return PyObject_CallFunctionObjArgs(function, argument, nullptr);
}

// Why a call on these tensors must not bypass the dispatcher, or nullptr. `any` is one of them.
const char* watcher(PyObject* any);

// A new contiguous tensor on x's device with x's shape but for the last dimension; also described in `out`.
// A third faster than calling torch.empty from here.
PyObject* allocate(const Tensor& x, int64_t last, Tensor* out);

}  // namespace python
}  // namespace edge_ops
