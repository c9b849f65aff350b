// Views and tensors, but for templates: shape texts, sizes that cannot overflow, aligned memory.
#include "qkv/tensor.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstdlib>
#include <limits>
#include <new>

#include "core/check.h"

namespace qkv::inline v0 {
namespace {

constexpr std::size_t kAlignment = 64;  // one cache line, one AVX-512 register

}  // namespace

std::string shape_text(const Index* sizes, int rank) {
  std::string text = "[";
  for (int axis = 0; axis < rank; ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(sizes[axis]);
  }
  return text + "]";
}

void throw_rank_error(int wanted, int got, const Index* sizes) {
  throw ShapeError("[View] a tensor of " + std::to_string(got) + " axes was given where the argument has " +
                   std::to_string(wanted) + ": got tensor " + shape_text(sizes, got) +
                   " (Tensor::reshape gives it others)");
}

Index checked_count(std::span<const Index> sizes) {
  const auto text = [&] { return shape_text(sizes.data(), static_cast<int>(sizes.size())); };
  bool empty = false;
  for (const Index size : sizes) {
    check<ShapeError>(size >= 0, "Tensor", "sizes must not be negative: got ", text);
    empty = empty || size == 0;
  }
  if (empty) return 0;  // whatever the other sizes are: a product with 0 in it does not overflow
  Index count = 1;
  for (const Index size : sizes) {
    check<ShapeError>(!__builtin_mul_overflow(count, size, &count), "Tensor",
        "the number of elements must fit in 63 bits: got ", text);
  }
  return count;
}

void* allocate_aligned(Index count, std::size_t size) {
  std::size_t bytes = 0;
  const bool fits = count >= 0 && !__builtin_mul_overflow(static_cast<std::size_t>(count), size, &bytes) &&
                    bytes <= static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) - kAlignment;
  check<ShapeError>(fits, "allocate_aligned", "count * size must fit in memory: got ", count, " of ", size, " bytes");
  // Whole lines, never 0 bytes: aligned_alloc wants a multiple, and an empty tensor has a pointer too. Much memory is
  // asked for in huge pages, as NumPy does: reading long caches waits for page tables otherwise.
  constexpr std::size_t huge = std::size_t{2} << 20;
  const std::size_t alignment = bytes >= 2 * huge ? huge : kAlignment;
  const std::size_t padded = bytes == 0 ? alignment : (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, padded);
  if (memory == nullptr) throw std::bad_alloc();
#ifdef __linux__
  if (alignment == huge) static_cast<void>(::madvise(memory, padded, MADV_HUGEPAGE));
#endif
  return memory;
}

void free_aligned(void* memory) noexcept { std::free(memory); }

}  // namespace qkv::inline v0
