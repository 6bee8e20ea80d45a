// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/consensus.h"

#include <new>
#include <utility>

namespace tessera::checkpoint {
namespace {

constexpr std::size_t kMaxTextBytes = 1000;
constexpr int kLengthBits = 10, kKindBits = 8, kByteBits = 8;

int lowest_failed(const Ranks& ranks, bool failed) {
  int low = 0, high = ranks.size;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    const bool below = ranks.any(failed && ranks.rank >= low && ranks.rank < middle);
    (below ? high : low) = middle;
  }
  return low;
}

}  // namespace

std::uint64_t broadcast(const Ranks& ranks, int root, std::uint64_t value, int bits) {
  std::uint64_t out = 0;
  for (int bit = 0; bit < bits; ++bit) {
    const bool mine = ranks.rank == root && ((value >> bit) & 1U) != 0;
    if (ranks.any(mine)) out |= std::uint64_t{1} << bit;
  }
  return out;
}

std::string broadcast(const Ranks& ranks, int root, const std::string& text) {
  const std::size_t mine = std::min(text.size(), kMaxTextBytes);
  std::string out(broadcast(ranks, root, mine, kLengthBits), '\0');
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto byte = i < mine ? static_cast<unsigned char>(text[i]) : 0U;
    out[i] = static_cast<char>(broadcast(ranks, root, byte, kByteBits));
  }
  return out;
}

std::uint64_t largest(const Ranks& ranks, std::optional<std::uint64_t> mine, int bits) {
  std::uint64_t out = 0;
  for (int bit = bits; bit-- > 0;) {
    const bool as_large = mine && ((*mine ^ out) >> bit) == 1U;  // equal so far, and has this bit
    if (ranks.any(as_large)) out |= std::uint64_t{1} << bit;
  }
  return out;
}

std::optional<Error> caught(const std::function<void()>& work) {
  try {
    work();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(Error::Kind::Memory, "out of memory while saving a checkpoint");
  } catch (const std::exception& error) {
    return Error(Error::Kind::Io, error.what());
  }
}

void run_together(const Ranks& ranks,
                  const std::function<void()>& work,
                  const std::function<void()>& undo) {
  const std::optional<Error> mine = caught(work);
  if (!ranks.any(mine.has_value())) return;
  const int root = lowest_failed(ranks, mine.has_value());
  const auto kind =
      broadcast(ranks, root, mine ? static_cast<std::uint64_t>(mine->kind()) : 0, kKindBits);
  const std::string what = broadcast(ranks, root, mine ? mine->what() : "");
  const std::string fix = broadcast(ranks, root, mine ? mine->fix() : "");
  undo();
  ranks.barrier();
  throw Error(static_cast<Error::Kind>(kind), what, fix);
}

}  // namespace tessera::checkpoint
