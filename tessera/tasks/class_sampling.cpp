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
std::vector<std::int64_t> chosen(std::vector<std::int64_t> indices,
                                 std::int64_t count,
                                 std::uint64_t seed = kSamplingSite) {
  std::ranges::sort(indices, {}, [&](std::int64_t index) {
    return std::pair(mix64(seed, static_cast<std::uint64_t>(index)), index);
  });
  indices.resize(static_cast<std::size_t>(count));
  std::ranges::sort(indices);
  return indices;
}

}  // namespace

std::vector<std::int64_t> stratified_samples(const std::vector<std::int64_t>& labels,
                                             std::int64_t count,
                                             std::uint64_t seed) {
  std::map<std::int64_t, std::vector<std::int64_t>> classes;
  for (std::size_t i = 0; i < labels.size(); ++i)
    classes[labels[i]].push_back(static_cast<std::int64_t>(i));
  const std::int64_t all = std::ssize(labels);
  // Whole shares first; what is left is given to the largest rests.
  std::map<std::int64_t, std::int64_t> shares;
  std::vector<std::pair<std::int64_t, std::int64_t>> rests;  // (minus the rest, class)
  std::int64_t left = count;
  for (const auto& [label, indices] : classes) {
    const std::int64_t product = std::ssize(indices) * count;
    shares[label] = product / all;
    left -= product / all;
    rests.emplace_back(-(product % all), label);
  }
  std::ranges::sort(rests);
  for (std::int64_t i = 0; i < left; ++i)
    ++shares[rests[static_cast<std::size_t>(i)].second];
  std::vector<std::int64_t> out;
  for (const auto& [label, indices] : classes) {
    const auto some = chosen(indices, shares[label], mix64(kSamplingSite, seed));
    out.insert(out.end(), some.begin(), some.end());
  }
  std::ranges::sort(out);
  return out;
}

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
