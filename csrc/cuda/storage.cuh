// Rows in memory and in registers: vector loads and stores, widening to float32, rounding to the storage type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace edge_ops {
namespace cuda {

// The raw bits of neighbouring elements. They are widened late, so that nothing waits for a load before it must.
template <int kBytes>
struct Bits {
  uint32_t word[(kBytes + 3) / 4];
};

// Plain loads, never the read-only path: an output may be its input, and with dependent launch the kernel before
// this one may still be running when this one starts.
template <int kBytes>
__device__ __forceinline__ Bits<kBytes> load_bits(const void* from) {
  Bits<kBytes> bits;
  if constexpr (kBytes >= 16) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; i++) {
      const uint4 v = static_cast<const uint4*>(from)[i];
      bits.word[4 * i] = v.x, bits.word[4 * i + 1] = v.y, bits.word[4 * i + 2] = v.z, bits.word[4 * i + 3] = v.w;
    }
  } else if constexpr (kBytes == 8) {
    const uint2 v = *static_cast<const uint2*>(from);
    bits.word[0] = v.x, bits.word[1] = v.y;
  } else if constexpr (kBytes == 4) {
    bits.word[0] = *static_cast<const uint32_t*>(from);
  } else {
    bits.word[0] = *static_cast<const uint16_t*>(from);
  }
  return bits;
}

template <int kBytes>
__device__ __forceinline__ void store_bits(void* to, const Bits<kBytes>& bits) {
  if constexpr (kBytes >= 16) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; i++)
      static_cast<uint4*>(to)[i] =
          make_uint4(bits.word[4 * i], bits.word[4 * i + 1], bits.word[4 * i + 2], bits.word[4 * i + 3]);
  } else if constexpr (kBytes == 8) {
    *static_cast<uint2*>(to) = make_uint2(bits.word[0], bits.word[1]);
  } else if constexpr (kBytes == 4) {
    *static_cast<uint32_t*>(to) = bits.word[0];
  } else {
    *static_cast<uint16_t*>(to) = static_cast<uint16_t>(bits.word[0]);
  }
}

// The storage types. A pair is one word: the lower half is the element of the lower address.
struct Float32 {
  static constexpr int kSize = 4;
};

struct BFloat16 {
  static constexpr int kSize = 2;
  using Pair = __nv_bfloat162;
  static __device__ __forceinline__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
  static __device__ __forceinline__ float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
  static __device__ __forceinline__ Pair pair(float low, float high) { return __floats2bfloat162_rn(low, high); }
  static __device__ __forceinline__ Pair both(float value) { return __float2bfloat162_rn(value); }
};

struct Float16 {
  static constexpr int kSize = 2;
  using Pair = __half2;
  static __device__ __forceinline__ float low(uint32_t pair) {
    return __low2float(*reinterpret_cast<const __half2*>(&pair));
  }
  static __device__ __forceinline__ float high(uint32_t pair) {
    return __high2float(*reinterpret_cast<const __half2*>(&pair));
  }
  static __device__ __forceinline__ Pair pair(float low, float high) { return __floats2half2_rn(low, high); }
  static __device__ __forceinline__ Pair both(float value) { return __float2half2_rn(value); }
};

template <class T>
__device__ __forceinline__ uint32_t round_pair(float low, float high) {
  const typename T::Pair pair = T::pair(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Whether every magnitude in kWords pairs is at most `bound`; a NaN is not.
template <class T, int kWords>
__device__ __forceinline__ bool all_within(const uint32_t (&words)[kWords], float bound) {
  typename T::Pair largest;
#pragma unroll
  for (int i = 0; i < kWords; i++) {
    const uint32_t magnitudes = words[i] & 0x7fff7fffu;
    const typename T::Pair pair = *reinterpret_cast<const typename T::Pair*>(&magnitudes);
    largest = i == 0 ? pair : __hmax2_nan(largest, pair);
  }
  return __hble2(largest, T::both(bound));
}

// Reads any storage's words: the first kCount elements of `bits`.
template <class T, int kCount, int kBytes>
__device__ __forceinline__ void widen(const Bits<kBytes>& bits, float (&v)[kCount]) {
  static_assert(kCount * T::kSize <= 4 * sizeof(bits.word) / 4, "not that many elements");
#pragma unroll
  for (int i = 0; i < kCount; i++) {
    if constexpr (T::kSize == 4) {
      v[i] = __uint_as_float(bits.word[i]);
    } else {
      v[i] = i % 2 == 0 ? T::low(bits.word[i / 2]) : T::high(bits.word[i / 2]);
    }
  }
}

template <class T, int kCount>
__device__ __forceinline__ Bits<kCount * T::kSize> round_to(const float (&v)[kCount]) {
  Bits<kCount * T::kSize> bits;
  if constexpr (T::kSize == 4) {
#pragma unroll
    for (int i = 0; i < kCount; i++) bits.word[i] = __float_as_uint(v[i]);
  } else if constexpr (kCount == 1) {
    bits.word[0] = round_pair<T>(v[0], 0.0f);
  } else {
#pragma unroll
    for (int i = 0; i < kCount / 2; i++) bits.word[i] = round_pair<T>(v[2 * i], v[2 * i + 1]);
  }
  return bits;
}

// `v` after a trip through the storage type.
template <class T, int kCount>
__device__ __forceinline__ void round_in_place(float (&v)[kCount]) {
  if constexpr (T::kSize == 2) widen<T>(round_to<T>(v), v);
}

template <class T>
__device__ __forceinline__ const void* at(const void* base, int64_t element) {
  return static_cast<const char*>(base) + element * T::kSize;
}

template <class T>
__device__ __forceinline__ void* at(void* base, int64_t element) {
  return static_cast<char*>(base) + element * T::kSize;
}

template <class T>
__device__ __forceinline__ float load_one(const void* base, int64_t element) {
  float v[1];
  widen<T>(load_bits<T::kSize>(at<T>(base, element)), v);
  return v[0];
}

template <class T>
__device__ __forceinline__ void store_one(void* base, int64_t element, float value) {
  const float v[1] = {value};
  store_bits<T::kSize>(at<T>(base, element), round_to<T>(v));
}

// kCount elements one by one, those before `limit`: for rows that do not allow wider accesses. The rest is 0.
template <class T, int kCount>
__device__ __forceinline__ Bits<kCount * T::kSize> load_elements(const void* base, int64_t element, int64_t limit) {
  Bits<kCount * T::kSize> bits = {};
#pragma unroll
  for (int i = 0; i < kCount; i++) {
    if (element + i >= limit) continue;
    const uint32_t word = load_bits<T::kSize>(at<T>(base, element + i)).word[0];
    if (T::kSize == 4) {
      bits.word[i] = word;
    } else {
      bits.word[i / 2] |= word << (i % 2 * 16);
    }
  }
  return bits;
}

template <class T, int kCount>
__device__ __forceinline__ void store_elements(void* base, int64_t element, int64_t limit,
                                               const Bits<kCount * T::kSize>& bits) {
#pragma unroll
  for (int i = 0; i < kCount; i++) {
    if (element + i >= limit) continue;
    const Bits<T::kSize> one = {{T::kSize == 4 ? bits.word[i] : bits.word[i / 2] >> (i % 2 * 16)}};
    store_bits(at<T>(base, element + i), one);
  }
}

// A constant operand (weight, cos and sin): of the rows' type or float32, which the launch says. The branch is the
// same for all threads.
template <class T, int kCount>
struct Constant {
  Bits<kCount * 4> bits;

  __device__ __forceinline__ void load(const void* base, int64_t element, bool is_float32) {
    if (T::kSize == 4 || is_float32) {
      bits = load_bits<kCount * 4>(at<Float32>(base, element));
    } else {
      keep(load_bits<kCount * T::kSize>(at<T>(base, element)));
    }
  }

  __device__ __forceinline__ void load_elements(const void* base, int64_t element, int64_t limit, bool is_float32) {
    if (T::kSize == 4 || is_float32) {
      bits = cuda::load_elements<Float32, kCount>(base, element, limit);
    } else {
      keep(cuda::load_elements<T, kCount>(base, element, limit));
    }
  }

  __device__ __forceinline__ void get(float (&v)[kCount], bool is_float32) const {
    if (T::kSize == 4 || is_float32) {
      widen<Float32>(bits, v);
    } else {
      widen<T>(bits, v);
    }
  }

 private:
  __device__ __forceinline__ void keep(const Bits<kCount * T::kSize>& narrow) {
#pragma unroll
    for (int i = 0; i < (kCount * T::kSize + 3) / 4; i++) bits.word[i] = narrow.word[i];
  }
};

template <class T>
__device__ __forceinline__ float load_constant(const void* base, int64_t element, bool is_float32) {
  return is_float32 ? load_one<Float32>(base, element) : load_one<T>(base, element);
}

}  // namespace cuda
}  // namespace edge_ops
