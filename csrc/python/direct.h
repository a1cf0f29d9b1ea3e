// The direct route's entry points for the module.
#pragma once

// The limited API of CPython 3.10, also where the build asks for an older one: METH_FASTCALL came into it then.
// No function newer than 3.9 is called, which is what the Kernel Hub checks.
#undef Py_LIMITED_API
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include "../ops/tensor.h"

namespace edge_ops {
namespace python {

// bind(name, function, documentation) -> the C function that stands in front of `function`.
PyObject* bind(PyObject* module, PyObject* args);

// probe(name, args, kwargs) -> None where that call would run directly, or a str that says why it would not.
PyObject* probe(PyObject* module, PyObject* args);

// PyTorch's current stream on a CUDA device, nullptr elsewhere. Needs no interpreter lock.
void* current_stream(const Device& device);

}  // namespace python
}  // namespace edge_ops
