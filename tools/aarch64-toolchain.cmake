# Builds the library for AArch64 Linux on another machine:
#
#   cmake -S . -B build/aarch64 -G Ninja -DCMAKE_TOOLCHAIN_FILE=tools/aarch64-toolchain.cmake \
#         -DTORCH_DIR=<unpacked AArch64 wheel of torch>/torch -DPython_EXECUTABLE=$(command -v python3)
#
# The interpreter is this machine's: its limited-API headers serve any 64-bit Linux. Debian's own Python keeps
# its configuration in a folder of the architecture; there name other headers with -DPython_INCLUDE_DIR.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)

# CMake asks no interpreter of this machine for the target's headers: the limited API's are the same.
if(Python_EXECUTABLE AND NOT Python_INCLUDE_DIR)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_path('include'))"
    OUTPUT_VARIABLE Python_INCLUDE_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(Python_INCLUDE_DIR "${Python_INCLUDE_DIR}" CACHE PATH "Headers of Python's limited API")
endif()
