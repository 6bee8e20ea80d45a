// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/batch_ramp.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

namespace tessera::optim {
namespace {

std::int64_t divided_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Reads three positive integers.
std::optional<BatchRampOptions> options_of(const json::Value& value,
                                           std::string_view path,
                                           config::Problems& problems) {
  // Far more than any dataset has, and no product with an increment overflows.
  constexpr std::int64_t kMost = 1'000'000'000'000;
  std::vector<std::int64_t> numbers;
  if (value.is_array()) {
    for (const json::Value& item : value.items()) {
      const auto number = item.is_number() ? item.as_integer() : std::nullopt;
      if (number && *number >= 1 && *number <= kMost) numbers.push_back(*number);
    }
    if (numbers.size() == 3 && value.items().size() == 3)
      return BatchRampOptions{numbers[0], numbers[1], numbers[2]};
  }
  problems.add(value.place,
               std::string(path),
               "expected [start, increment, samples], three integers from 1 on",
               "for example [16, 16, 100000]");
  return std::nullopt;
}

}  // namespace

BatchRamp::BatchRamp(const BatchRampOptions& options, std::int64_t global)
    : options_(options),
      global_(global),
      increments_((global - options.start) / options.increment) {
  Level level{1, 0, size(0)};
  levels_.push_back(level);
  while (level.size < global_) {
    const std::int64_t next = (level.size - options_.start) / options_.increment + 1;
    const std::int64_t updates = divided_up(needed(next) - level.consumed, level.size);
    level.first_update += updates;
    level.consumed += updates * level.size;
    level.size = size(level.consumed);
    levels_.push_back(level);
  }
}

std::int64_t BatchRamp::needed(std::int64_t increments) const {
  return divided_up(increments * options_.samples, increments_);
}

std::int64_t BatchRamp::size(std::int64_t consumed) const {
  if (consumed >= options_.samples) return global_;
  return options_.start + consumed * increments_ / options_.samples * options_.increment;
}

std::int64_t BatchRamp::samples_before(std::int64_t update) const {
  const auto after =
      std::upper_bound(levels_.begin(), levels_.end(), update, [](std::int64_t k, const Level& l) {
        return k < l.first_update;
      });
  const Level& level = *(after - 1);
  return level.consumed + (update - level.first_update) * level.size;
}

std::optional<BatchRamp> read_batch_ramp(const json::Value& value,
                                         std::string_view path,
                                         std::int64_t global,
                                         std::int64_t micro_batches,
                                         config::Problems& problems) {
  const auto options = options_of(value, path, problems);
  if (!options) return std::nullopt;
  const auto refuse = [&](const std::string& what, const std::string& fix) {
    problems.add(value.place, std::string(path), what, fix);
    return std::nullopt;
  };
  const std::int64_t start = options->start, increment = options->increment;
  if (start > global) {
    return refuse(fmt::format("the start {} is above the batch size of {}", start, global),
                  "lower the start or raise train_batch_size");
  }
  if ((global - start) % increment != 0) {
    return refuse(fmt::format("the increment {} does not divide {} - {} = {}",
                              increment,
                              global,
                              start,
                              global - start),
                  "choose a divisor");
  }
  for (std::int64_t size = start; size <= global; size += increment) {
    if (size % micro_batches == 0) continue;
    return refuse(
        fmt::format("a batch of {} is not divisible by {}, a micro-batch of every rank",
                    size,
                    micro_batches),
        fmt::format("choose start and increment among the multiples of {}", micro_batches));
  }
  return BatchRamp(*options, global);
}

}  // namespace tessera::optim
