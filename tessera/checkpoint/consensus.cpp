// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/consensus.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

namespace tessera::checkpoint {
namespace {

constexpr std::size_t kMaxTextBytes = 1000;
constexpr int kHalfBits = 32;

std::uint32_t high_half(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> kHalfBits);
}

std::uint32_t low_half(std::uint64_t value) {
  return static_cast<std::uint32_t>(value);
}

std::uint64_t joined(std::uint32_t high, std::uint32_t low) {
  return (std::uint64_t{high} << kHalfBits) | low;
}

int lowest_failed(const Ranks& ranks, bool failed) {
  const int from_end = failed ? ranks.size - ranks.rank : 0;
  return ranks.size - static_cast<int>(ranks.largest({static_cast<std::uint32_t>(from_end)})[0]);
}

}  // namespace

std::uint64_t broadcast(const Ranks& ranks, int root, std::uint64_t value) {
  const std::uint64_t mine = ranks.rank == root ? value : 0;
  const std::vector<std::uint32_t> halves = ranks.largest({high_half(mine), low_half(mine)});
  return joined(halves[0], halves[1]);
}

std::string broadcast(const Ranks& ranks, int root, const std::string& text) {
  std::vector<std::uint32_t> bytes(broadcast(ranks, root, std::min(text.size(), kMaxTextBytes)));
  if (bytes.empty()) return "";
  if (ranks.rank == root) {
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<unsigned char>(text[i]);
  }
  std::string out;
  for (const std::uint32_t byte : ranks.largest(std::move(bytes)))
    out += static_cast<char>(byte);
  return out;
}

std::uint64_t largest(const Ranks& ranks, std::optional<std::uint64_t> mine) {
  const std::uint32_t high = ranks.largest({mine ? high_half(*mine) : 0U})[0];
  const bool as_high = mine && high_half(*mine) == high;
  return joined(high, ranks.largest({as_high ? low_half(*mine) : 0U})[0]);
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
  const auto kind = broadcast(ranks, root, mine ? static_cast<std::uint64_t>(mine->kind()) : 0);
  const std::string what = broadcast(ranks, root, mine ? mine->what() : "");
  const std::string fix = broadcast(ranks, root, mine ? mine->fix() : "");
  undo();
  ranks.barrier();
  throw Error(static_cast<Error::Kind>(kind), what, fix);
}

}  // namespace tessera::checkpoint
