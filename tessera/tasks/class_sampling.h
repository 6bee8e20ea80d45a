// SPDX-License-Identifier: Apache-2.0
// Balances classes that occur with different frequencies.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tessera/config/choices.h"

namespace tessera::tasks {

/// The frequency with which samples of each class are read in an epoch.
enum class ClassSampling : std::uint8_t {
  None,  ///< as often as they occur
  Down,  ///< each class as often as the rarest one; samples of others are dropped
  Over,  ///< each class as often as the most frequent one; samples of others are repeated
};
constexpr auto kClassSamplings = std::to_array<config::Named<ClassSampling>>(
    {{ClassSampling::None, "none"}, {ClassSampling::Down, "down"}, {ClassSampling::Over, "over"}});

/// The samples of an epoch as indices into `labels`, for classes that occur at all. A hash of the
/// index selects those that are dropped, or repeated once more than others; they are the same in
/// every epoch. Down keeps the order; with Over each round of repetitions is in order.
std::vector<std::int64_t> balanced_samples(const std::vector<std::int64_t>& labels,
                                           ClassSampling sampling);

/// `count` of the samples, as indices in order, in which every class has its share of `labels`, to
/// the nearest whole number. A hash of seed and index selects those of a class.
std::vector<std::int64_t> stratified_samples(const std::vector<std::int64_t>& labels,
                                             std::int64_t count,
                                             std::uint64_t seed);

/// The labels of each sample: its class, or several, such as the tags of its words. A sample
/// without labels may be in any part.
using LabelsOfSamples = std::vector<std::vector<std::int64_t>>;

/// Divides the samples into parts of the given sizes, whose sum is the number of samples, and
/// returns the part of each sample. Every label has its share in every part: to less than one
/// sample if samples have one label each; else the rarest labels are divided first. Hashes of seed
/// and index order the samples of a label. Source: Sechidis et al. 2011, "On the stratification of
/// multi-label data", with whole numbers. Cost: labels of all samples x (parts + log labels).
std::vector<std::int64_t> stratified_parts(const LabelsOfSamples& labels,
                                           const std::vector<std::int64_t>& sizes,
                                           std::uint64_t seed);

}  // namespace tessera::tasks
