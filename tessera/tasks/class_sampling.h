// SPDX-License-Identifier: Apache-2.0
// Classes that occur unequally often, sampled as often as each other.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tessera/config/choices.h"

namespace tessera::tasks {

/// How often samples of the classes are read in an epoch.
enum class ClassSampling : std::uint8_t {
  None,  ///< as often as they are there
  Down,  ///< each class as often as the rarest one: others lose samples
  Over,  ///< each class as often as the most frequent one: others are repeated
};
constexpr auto kClassSamplings = std::to_array<config::Named<ClassSampling>>(
    {{ClassSampling::None, "none"}, {ClassSampling::Down, "down"}, {ClassSampling::Over, "over"}});

/// The samples of an epoch by their indices in `labels`, of classes that occur at all. Those that
/// are lost, or repeated once more than others, are chosen by a hash of the index; the same
/// ones in every epoch. With Down they stay in order, with Over every round of
/// repetitions is in order.
std::vector<std::int64_t> balanced_samples(const std::vector<std::int64_t>& labels,
                                           ClassSampling sampling);

}  // namespace tessera::tasks
