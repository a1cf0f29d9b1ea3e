// The part of DLPack's C exchange API that the direct route uses. The layouts are fixed by DLPack 1.x
// (dmlc/dlpack, include/dlpack/dlpack.h); a type offers the table as its attribute
// `__dlpack_c_exchange_api__`, a capsule named "dlpack_exchange_api".
#pragma once

#include <stdint.h>

extern "C" {

struct DLPackVersion {
  uint32_t major, minor;
};

struct DLDevice {
  int32_t type, id;
};

struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct DLPackExchangeAPI {
  struct Header {
    DLPackVersion version;
    Header* previous;
  } header;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object_no_sync;
  void* managed_tensor_to_py_object_no_sync;
  // Fills a view that is valid while the object lives; -1 with a Python error set where there is none.
  int (*dltensor_from_py_object_no_sync)(void* object, DLTensor* out);
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** out);
};

}  // extern "C"

constexpr int32_t kDLCPU = 1;
constexpr int32_t kDLCUDA = 2;
constexpr uint8_t kDLInt = 0;
constexpr uint8_t kDLFloat = 2;
constexpr uint8_t kDLBfloat = 4;
