#include "pytorch.h"

#include <string.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

namespace edge_ops {
namespace python {
namespace {

PyObject* attribute(const char* module, const char* path) {
  PyObject* object = PyImport_ImportModule(module);
  char name[64];
  while (object != nullptr && *path != '\0') {
    const char* dot = strchr(path, '.');
    const size_t length = dot != nullptr ? static_cast<size_t>(dot - path) : strlen(path);
    memcpy(name, path, length);
    name[length] = '\0';
    PyObject* next = PyObject_GetAttrString(object, name);
    Py_DECREF(object);
    object = next;
    path += length + (dot != nullptr);
  }
  return object;
}

bool is_true(PyObject* dict, PyObject* name) { return PyDict_GetItemWithError(dict, name) == Py_True; }

}  // namespace

Torch pytorch;

bool look_up_torch() {
  if (pytorch.dlpack != nullptr) return true;
  pytorch.tensor = reinterpret_cast<PyTypeObject*>(attribute("torch", "Tensor"));
  pytorch.parameter = reinterpret_cast<PyTypeObject*>(attribute("torch.nn", "Parameter"));
  pytorch.has_torch_function = attribute("torch._C", "_has_torch_function_unary");
  pytorch.is_tracing = attribute("torch._C", "_is_tracing");
  pytorch.increment_version = attribute("torch._C", "_increment_version");
  pytorch.adopt_tensors = attribute("torch._C", "_aoti.alloc_tensors_by_stealing_from_void_ptrs");
  pytorch.dispatch_modes = attribute("torch.utils._python_dispatch", "__dict__");
  pytorch.profiler = attribute("torch.autograd.profiler", "__dict__");
  pytorch.requires_grad = attribute("torch._C", "TensorBase.requires_grad");
  pytorch.in_dispatch_mode = PyUnicode_InternFromString("_is_in_torch_dispatch_mode");
  pytorch.profiler_enabled = PyUnicode_InternFromString("_is_profiler_enabled");
  PyObject* capsule = attribute("torch", "Tensor.__dlpack_c_exchange_api__");
  if (PyErr_Occurred()) return false;
  pytorch.get = reinterpret_cast<descrgetfunc>(PyType_GetSlot(Py_TYPE(pytorch.requires_grad), Py_tp_descr_get));
  pytorch.dlpack = static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  Py_DECREF(capsule);
  if (pytorch.dlpack != nullptr && pytorch.dlpack->header.version.major != 1) {
    PyErr_SetString(PyExc_ImportError, "edge_ops: this torch offers a DLPack exchange API of another major version");
    pytorch.dlpack = nullptr;
  }
  return pytorch.dlpack != nullptr;
}

const char* watcher(PyObject* any) {
  if (is_true(pytorch.dispatch_modes, pytorch.in_dispatch_mode)) return "a dispatch mode is active";
  if (is_true(pytorch.profiler, pytorch.profiler_enabled)) return "the profiler is active";
  const char* reason = nullptr;
  PyObject* answer = call_one(pytorch.has_torch_function, any);
  if (answer != Py_False) reason = "a __torch_function__ mode is active";
  Py_XDECREF(answer);
  if (reason == nullptr) {
    answer = PyObject_CallObject(pytorch.is_tracing, nullptr);
    if (answer != Py_False) reason = "torch.jit.trace is active";
    Py_XDECREF(answer);
  }
  PyErr_Clear();
  return reason;
}

PyObject* allocate(const Tensor& x, int64_t last, Tensor* out) {
  *out = x;
  out->shape[x.rank - 1] = last;
  int64_t stride = 1;
  for (int d = x.rank - 1; d >= 0; d--) {
    out->stride[d] = stride;
    stride *= out->shape[d] > 1 ? out->shape[d] : 1;
  }
  static const int32_t dtypes[] = {aoti_torch_dtype_float32(), aoti_torch_dtype_bfloat16(), aoti_torch_dtype_float16()};
  const int32_t device_type =
      x.device.type == DeviceType::kCuda ? aoti_torch_device_type_cuda() : aoti_torch_device_type_cpu();
  AtenTensorHandle handle = nullptr;
  if (aoti_torch_empty_strided(x.rank, out->shape, out->stride, dtypes[static_cast<int>(x.dtype)], device_type,
                               x.device.index, &handle) != 0 ||
      aoti_torch_get_data_ptr(handle, &out->data) != 0) {
    PyErr_SetString(PyExc_MemoryError, "edge_ops: the result could not be allocated");
    return nullptr;
  }
  PyObject* tensor = nullptr;
  PyObject* capsule = PyCapsule_New(handle, nullptr, nullptr);
  PyObject* handles = capsule != nullptr ? PyList_New(1) : nullptr;
  if (handles == nullptr) {
    Py_XDECREF(capsule);
    aoti_torch_delete_tensor_object(handle);
    return nullptr;
  }
  PyList_SetItem(handles, 0, capsule);
  PyObject* tensors = call_one(pytorch.adopt_tensors, handles);  // takes the handles over
  Py_DECREF(handles);
  if (tensors != nullptr) {
    tensor = PyList_GetItem(tensors, 0);
    Py_XINCREF(tensor);
    Py_DECREF(tensors);
  }
  return tensor;
}

}  // namespace python
}  // namespace edge_ops
