// The storage types of a row, as types: what a kernel is instantiated with. No definitions with linkage.

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

// Small copies through a local buffer, for the ends of rows on ISAs without masked memory access.
template <class T>
inline void copy_n(T* to, const T* from, int n) {
  for (int i = 0; i < n; i++) __builtin_memcpy(to + i, from + i, sizeof(T));
}
