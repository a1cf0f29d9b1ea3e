// CPython, of which only the stable part.
#pragma once

// The limited API of CPython 3.10, also where the build asks for an older one: METH_FASTCALL came into it then.
// No function newer than 3.9 is called, which is what the Kernel Hub checks.
#undef Py_LIMITED_API
#define Py_LIMITED_API 0x030a0000
#include <Python.h>
