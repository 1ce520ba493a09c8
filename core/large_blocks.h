#pragma once

#include <cstddef>

namespace lockstep::detail {

/// Note [Huge pages]
/// Blocks that hold a huge page are mapped by themselves, from the beginning of one, and the system is asked for huge
/// pages where it gives them on request: rows that lie far apart then do not each need the address of a page of 4 KiB
/// looked up, and what lies together in a block has places of its own in a cache. What is written takes memory by huge
/// pages, so a block of which little is written may take more than before; its end, if it is no whole huge page, has
/// small ones. Blocks begin at different pages behind the boundary: elements with the same index of several tensors
/// would share places in the second-level cache otherwise. A process may have some 65,000 mappings, of which threads
/// and libraries need some: beyond 8,192 blocks, where no more can be mapped, and with LOCKSTEP_HUGE_PAGES=0 memory
/// comes from the C library.
inline constexpr std::size_t kLargeBlock = std::size_t{2} << 20;

/// `bytes`, at least kLargeBlock, aligned to 64; null if there is no memory.
void* allocate_large_block(std::size_t bytes);
/// Gives it back; `bytes` is what was asked for.
void free_large_block(void* data, std::size_t bytes);

}  // namespace lockstep::detail
