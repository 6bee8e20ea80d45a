// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/class_sampling.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <utility>

#include "tessera/base/philox.h"

namespace tessera::tasks {
namespace {

constexpr std::uint64_t kSamplingSite = 0x636C6173;

/// Selects `count` of the indices by their hashes; the result is in order.
std::vector<std::int64_t> chosen(std::vector<std::int64_t> indices, std::int64_t count) {
  std::ranges::sort(indices, {}, [](std::int64_t index) {
    return std::pair(mix64(kSamplingSite, static_cast<std::uint64_t>(index)), index);
  });
  indices.resize(static_cast<std::size_t>(count));
  std::ranges::sort(indices);
  return indices;
}

}  // namespace

std::vector<std::int64_t> balanced_samples(const std::vector<std::int64_t>& labels,
                                           ClassSampling sampling) {
  std::vector<std::int64_t> out;
  if (sampling == ClassSampling::None || labels.empty()) {
    out.resize(labels.size());
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  std::map<std::int64_t, std::vector<std::int64_t>> classes;
  for (std::size_t i = 0; i < labels.size(); ++i)
    classes[labels[i]].push_back(static_cast<std::int64_t>(i));
  std::int64_t wanted = std::ssize(classes.begin()->second);
  for (const auto& [label, indices] : classes) {
    wanted = sampling == ClassSampling::Down ? std::min(wanted, std::ssize(indices))
                                             : std::max(wanted, std::ssize(indices));
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> rounds;  // (round, index)
  for (const auto& [label, indices] : classes) {
    const std::int64_t whole = wanted / std::ssize(indices);
    for (std::int64_t round = 0; round < whole; ++round) {
      for (const std::int64_t index : indices)
        rounds.emplace_back(round, index);
    }
    for (const std::int64_t index : chosen(indices, wanted % std::ssize(indices)))
      rounds.emplace_back(whole, index);
  }
  std::ranges::sort(rounds);
  for (const auto& [round, index] : rounds)
    out.push_back(index);
  return out;
}

}  // namespace tessera::tasks
