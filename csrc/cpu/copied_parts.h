// Parts of vectors and pairs of vectors, for ISAs without masked memory access. Included after the Vec's full loads
// and stores.

template <class T>
inline void copy_n(T* to, const T* from, int n) {
  for (int i = 0; i < n; i++) __builtin_memcpy(to + i, from + i, sizeof(T));
}

template <class T>
__attribute__((noinline)) Vec load_part(const T* p, int n) {
  T buffer[16] = {};
  copy_n(buffer, p, n);
  return load(buffer);
}
template <class T>
__attribute__((noinline)) void store_part(T* p, Vec x, int n) {
  T buffer[16];
  store(buffer, x);
  copy_n(p, buffer, n);
}
// The ends of rows: a call, since its copies would swell every loop. A full vector costs no call.
template <class T>
inline Vec load_n(const T* p, int n) {
  return n == 16 ? load(p) : load_part(p, n);
}
template <class T>
inline void store_n(T* p, Vec x, int n) {
  if (n == 16) {
    store(p, x);
  } else {
    store_part(p, x, n);
  }
}
template <class T>
inline void store2(T* p, Vec lo, Vec hi) {
  store(p, lo);
  store(p + 16, hi);
}
