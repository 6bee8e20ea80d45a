// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/class_sampling.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"

namespace tessera::tasks {
namespace {

constexpr std::uint64_t kSamplingSite = 0x636C6173;

void order_by_hash(std::vector<std::int64_t>& indices, std::uint64_t seed) {
  std::ranges::sort(indices, {}, [&](std::int64_t index) {
    return std::pair(mix64(seed, static_cast<std::uint64_t>(index)), index);
  });
}

/// Selects `count` of the indices by their hashes; the result is in order.
std::vector<std::int64_t> chosen(std::vector<std::int64_t> indices,
                                 std::int64_t count,
                                 std::uint64_t seed = kSamplingSite) {
  order_by_hash(indices, seed);
  indices.resize(static_cast<std::size_t>(count));
  std::ranges::sort(indices);
  return indices;
}

/// Divides samples one label after the other, those of the rarest label first.
class Division {
 public:
  Division(const LabelsOfSamples& labels,
           const std::vector<std::int64_t>& sizes,
           std::uint64_t seed)
      : labels_(labels), sizes_(sizes), left_(sizes), parts_(labels.size(), kNoPart), seed_(seed) {
    const std::int64_t all = std::ssize(labels);
    for (std::int64_t i = 0; i < all; ++i) {
      for (const std::int64_t label : labels_of(i))
        samples_[label].push_back(i);
    }
    for (auto& [label, indices] : samples_) {
      order_by_hash(indices, seed_);
      unassigned_[label] = std::ssize(indices);
      std::vector<std::int64_t>& wanted = wanted_[label];
      for (const std::int64_t size : sizes)
        wanted.push_back(std::ssize(indices) * size);
    }
  }
  std::vector<std::int64_t> run() {
    std::set<std::pair<std::int64_t, std::int64_t>> queue;  // (unassigned samples, label)
    for (const auto& [label, count] : unassigned_)
      queue.emplace(count, label);
    while (!queue.empty()) {
      const std::int64_t label = queue.begin()->second;
      queue.erase(queue.begin());
      for (const std::int64_t index : samples_[label]) {
        if (parts_[static_cast<std::size_t>(index)] != kNoPart) continue;
        assign(index, best_part(&wanted_[label]));
        for (const std::int64_t own : labels_of(index)) {
          std::int64_t& count = unassigned_[own];
          if (queue.erase({count, own}) > 0) queue.emplace(count - 1, own);
          --count;
        }
      }
    }
    std::vector<std::int64_t> rest;
    for (std::size_t i = 0; i < parts_.size(); ++i)
      if (parts_[i] == kNoPart) rest.push_back(static_cast<std::int64_t>(i));
    order_by_hash(rest, seed_);
    for (const std::int64_t index : rest)
      assign(index, best_part(nullptr));
    return std::move(parts_);
  }

 private:
  static constexpr std::int64_t kNoPart = -1;

  /// Each label of the sample once.
  [[nodiscard]] std::vector<std::int64_t> labels_of(std::int64_t index) const {
    std::vector<std::int64_t> out = labels_[static_cast<std::size_t>(index)];
    std::ranges::sort(out);
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }
  /// The part that has room and lacks most of the label, or else most of its size.
  [[nodiscard]] std::size_t best_part(const std::vector<std::int64_t>* wanted) const {
    std::size_t best = sizes_.size();
    for (std::size_t p = 0; p < sizes_.size(); ++p) {
      if (left_[p] == 0) continue;
      if (best == sizes_.size()) {
        best = p;
        continue;
      }
      const std::int64_t lacks = wanted != nullptr ? (*wanted)[p] - (*wanted)[best] : 0;
      if (lacks > 0 || (lacks == 0 && left_[p] * sizes_[best] > left_[best] * sizes_[p])) best = p;
    }
    return best;
  }
  void assign(std::int64_t index, std::size_t part) {
    parts_[static_cast<std::size_t>(index)] = static_cast<std::int64_t>(part);
    --left_[part];
    // wanted_ counts in units of 1 / (number of samples), so that shares are whole numbers.
    for (const std::int64_t label : labels_of(index))
      wanted_[label][part] -= std::ssize(labels_);
  }

  const LabelsOfSamples& labels_;
  const std::vector<std::int64_t>& sizes_;
  std::vector<std::int64_t> left_, parts_;
  std::map<std::int64_t, std::vector<std::int64_t>> samples_, wanted_;  // by label
  std::map<std::int64_t, std::int64_t> unassigned_;
  std::uint64_t seed_;
};

}  // namespace

std::vector<std::int64_t> stratified_parts(const LabelsOfSamples& labels,
                                           const std::vector<std::int64_t>& sizes,
                                           std::uint64_t seed) {
  TESSERA_ASSERT(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) ==
                 std::ssize(labels));
  return Division(labels, sizes, mix64(kSamplingSite, seed)).run();
}

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
