// The abi3 module. Its name is unique to the build (TORCH_EXTENSION_NAME), and so is the namespace of the
// operators that torch_binding.cpp registers from the same shared object.
#include "direct.h"

#include <stdlib.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include "../cpu/cpu.h"
#include "../run.h"

#define EDGE_OPS_STRING_OF(x) #x
#define EDGE_OPS_STRING(x) EDGE_OPS_STRING_OF(x)
#define EDGE_OPS_INIT_OF(name) PyInit_##name
#define EDGE_OPS_INIT(name) EDGE_OPS_INIT_OF(name)

namespace edge_ops {
namespace python {
namespace {

// PyTorch's own pool: no OpenMP of this library's, so never two runtimes in a process.
void parallel_for(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*), void* context) {
  if (torch_parallel_for(begin, end, grain, body, context) != 0) body(begin, end, context);
}

bool append(PyObject* list, const char* text) {
  PyObject* string = PyUnicode_FromString(text);
  const bool done = string != nullptr && PyList_Append(list, string) == 0;
  Py_XDECREF(string);
  return done;
}

PyObject* build_info(PyObject*, PyObject*) {
  const cpu::Level* levels;
  const int count = cpu::levels(&levels);
  PyObject *compiled = PyList_New(0), *offered = PyList_New(0), *backends = PyList_New(0);
  PyObject* info = nullptr;
  bool filled = compiled != nullptr && offered != nullptr && backends != nullptr;
  for (int i = 0; filled && i < count; i++) {
    filled = append(compiled, levels[i].name) && (!levels[i].offered || append(offered, levels[i].name));
  }
  filled = filled && append(backends, "cpu") && (!has_backend(DeviceType::kCuda) || append(backends, "cuda"));
  if (filled) {
    info = Py_BuildValue("{s:O,s:O,s:s,s:O}", "isa_compiled", compiled, "isa_offered", offered, "isa_chosen",
                         cpu::chosen_level(), "backends", backends);
  }
  Py_XDECREF(compiled);
  Py_XDECREF(offered);
  Py_XDECREF(backends);
  return info;
}

PyObject* grains(PyObject*, PyObject*) {
  const cpu::Grains now = cpu::grains();
  return Py_BuildValue("{s:L,s:L,s:L}", "norm", static_cast<long long>(now.norm), "gate",
                       static_cast<long long>(now.gate), "heads", static_cast<long long>(now.heads));
}

PyObject* set_grains(PyObject*, PyObject* args) {
  long long norm, gate, heads;
  if (!PyArg_ParseTuple(args, "LLL:set_grains", &norm, &gate, &heads)) return nullptr;
  if (norm < 1 || gate < 1 || heads < 1) {
    PyErr_Format(PyExc_ValueError, "grains must be 1 or more, got %lld, %lld, %lld", norm, gate, heads);
    return nullptr;
  }
  cpu::set_grains({norm, gate, heads});
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"bind", bind, METH_VARARGS, "bind(name, function, documentation): the C function in front of `function`."},
    {"probe", probe, METH_VARARGS, "probe(name, args, kwargs): why that call would not run directly, or None."},
    {"build_info", build_info, METH_NOARGS, "build_info(): what this library was built with and chose."},
    {"grains", grains, METH_NOARGS, "grains(): elements up to which rows stay on one thread, by kind of operator."},
    {"set_grains", set_grains, METH_VARARGS, "set_grains(norm, gate, heads): others than the built-in ones."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          EDGE_OPS_STRING(TORCH_EXTENSION_NAME),
                          "Edge-ops' native code.",
                          -1,
                          functions,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

// EDGE_OPS_CPU_ISA lowers the level; it is read here, at import, and never again.
bool choose_level() {
  const char* limit = getenv("EDGE_OPS_CPU_ISA");
  if (limit != nullptr && *limit == '\0') limit = nullptr;
  const char* problem = cpu::choose_level(limit, parallel_for);
  if (problem == nullptr) return true;
  const cpu::Level* levels;
  const int count = cpu::levels(&levels);
  char names[128] = "";
  size_t used = 0;
  for (int i = 0; i < count; i++) {
    if (!levels[i].offered) continue;
    if (used != 0) names[used++] = '|';
    for (const char* c = levels[i].name; *c != '\0' && used + 2 < sizeof(names); c++) names[used++] = *c;
  }
  names[used] = '\0';
  PyErr_Format(PyExc_ImportError, "EDGE_OPS_CPU_ISA=%s: %s; it can be one of %s", limit, problem, names);
  return false;
}

}  // namespace
}  // namespace python
}  // namespace edge_ops

PyMODINIT_FUNC EDGE_OPS_INIT(TORCH_EXTENSION_NAME)() {
  if (!edge_ops::python::choose_level()) return nullptr;
  return PyModule_Create(&edge_ops::python::definition);
}
