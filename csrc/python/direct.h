// The direct route's entry points for the module.
#pragma once

#include "../ops/tensor.h"
#include "limited_api.h"

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
