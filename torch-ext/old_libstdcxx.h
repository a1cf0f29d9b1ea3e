// Keeps the library loadable beside the C++ runtimes of manylinux_2_28 (GLIBCXX 3.4.24, glibc 2.28) when a newer
// compiler builds it. Include it before any other header, in every file that includes torch's.
//
// Torch's header-only checks format messages with string streams, whose default constructors moved into
// libstdc++ in GLIBCXX 3.4.26: instantiate the stream templates here instead.
#pragma once

#if defined(__GLIBCXX__) || defined(__linux__)
#include <istream>
#include <locale>
#include <ostream>
#include <string>

#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 0
#include <sstream>
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 1
#endif
