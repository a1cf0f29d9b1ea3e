// The floor of a call: an abi3 module that reaches tensors and the stream as the library's direct route does, and
// launches a kernel that does nothing. No checks, no arguments but tensors.
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include "../../csrc/cuda/launch.h"
#include "../../csrc/python/dlpack.h"

using namespace edge_ops;

namespace {

const DLPackExchangeAPI* dlpack = nullptr;

struct Nothing {};

__global__ void nothing(const Nothing) {
  cuda::wait_for_previous_kernel();
  cuda::let_next_kernel_start();
}

// call(*tensors): a view of each tensor, the current stream of device 0, the launch.
PyObject* call(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  for (Py_ssize_t i = 0; i < nargs; i++) {
    DLTensor view;
    if (dlpack->dltensor_from_py_object_no_sync(args[i], &view) != 0) return nullptr;
  }
  void* stream = nullptr;
  if (dlpack->current_work_stream(kDLCUDA, 0, &stream) != 0) return nullptr;
  const cuda::Target target{0, static_cast<cudaStream_t>(stream)};
  if (const char* problem = cuda::error_text(cuda::launch(nothing, 1, 32, Nothing{}, cuda::Plan::kNever, target))) {
    PyErr_SetString(PyExc_RuntimeError, problem);
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "empty_call", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_empty_call() {
  PyObject* torch = PyImport_ImportModule("torch");
  PyObject* tensor = torch != nullptr ? PyObject_GetAttrString(torch, "Tensor") : nullptr;
  PyObject* capsule = tensor != nullptr ? PyObject_GetAttrString(tensor, "__dlpack_c_exchange_api__") : nullptr;
  if (capsule != nullptr) {
    dlpack = static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  }
  Py_XDECREF(torch);
  Py_XDECREF(tensor);
  Py_XDECREF(capsule);
  return dlpack != nullptr ? PyModule_Create(&definition) : nullptr;
}
