// The storage types of a row, as types: what a kernel is instantiated with. No definitions with linkage.

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
