// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/batch_ramp.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace tessera::optim {
namespace {

// Far more than any dataset has, and no product with an increment overflows.
constexpr std::int64_t kMost = 1'000'000'000'000;

std::int64_t divided_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// The increments of a ramp come after equal parts of its samples, rounded up.
std::vector<BatchStep> steps_of(const BatchRampOptions& options, std::int64_t global) {
  const std::int64_t increments = (global - options.start) / options.increment;
  std::vector<BatchStep> out = {{0, options.start}};
  for (std::int64_t i = 1; i <= increments; ++i)
    out.push_back(
        {divided_up(i * options.samples, increments), options.start + i * options.increment});
  return out;
}

/// Reads a list of [samples, size], in which both grow; nothing, with the reason, for another one.
std::optional<std::vector<BatchStep>> read_steps(const json::Value& value,
                                                 std::string_view path,
                                                 std::int64_t global,
                                                 config::Problems& problems) {
  const auto refuse = [&](const json::Value& where, const std::string& what) {
    problems.add(where.place,
                 std::string(path),
                 what,
                 fmt::format("for example [[0, {}], [100000, {}]]", (global + 1) / 2, global));
    return std::nullopt;
  };
  std::vector<BatchStep> out;
  for (const json::Value& item : value.items()) {
    const bool pair = item.is_array() && item.items().size() == 2 && item.items()[0].is_number() &&
                      item.items()[1].is_number();
    const auto samples = pair ? item.items()[0].as_integer() : std::nullopt;
    const auto size = pair ? item.items()[1].as_integer() : std::nullopt;
    if (!samples || !size || *samples < 0 || *samples > kMost || *size < 1 || *size > kMost)
      return refuse(item, "expected steps [samples, size] of integers");
    if (out.empty() ? *samples != 0 : *samples <= out.back().consumed)
      return refuse(item, "the first step begins at 0 samples, and each later one after the last");
    out.push_back({*samples, *size});
  }
  if (out.back().size != global) {
    return refuse(value,
                  fmt::format("the last step has a batch of {}, and train_batch_size is {}",
                              out.back().size,
                              global));
  }
  return out;
}

/// Reads three positive integers.
std::optional<BatchRampOptions> options_of(const json::Value& value,
                                           std::string_view path,
                                           config::Problems& problems) {
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
               "expected [start, increment, samples], three integers from 1 on, or steps [samples, "
               "size]",
               "for example [16, 16, 100000]");
  return std::nullopt;
}

}  // namespace

BatchRamp::BatchRamp(const BatchRampOptions& options, std::int64_t global)
    : BatchRamp(steps_of(options, global)) {}

BatchRamp::BatchRamp(std::vector<BatchStep> steps) : steps_(std::move(steps)) {
  Level level{1, 0, steps_.front().size};
  levels_.push_back(level);
  for (const BatchStep& step : steps_) {
    // The level already has the size of a step that begins within its first update.
    if (step.consumed <= level.consumed) continue;
    const std::int64_t updates = divided_up(step.consumed - level.consumed, level.size);
    level.first_update += updates;
    level.consumed += updates * level.size;
    level.size = size(level.consumed);
    levels_.push_back(level);
  }
}

std::int64_t BatchRamp::size(std::int64_t consumed) const {
  const auto after = std::upper_bound(
      steps_.begin(), steps_.end(), consumed, [](std::int64_t samples, const BatchStep& step) {
        return samples < step.consumed;
      });
  return (after - 1)->size;
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
  const auto refuse = [&](const std::string& what, const std::string& fix) {
    problems.add(value.place, std::string(path), what, fix);
    return std::nullopt;
  };
  if (value.is_array() && !value.items().empty() && value.items().front().is_array()) {
    auto steps = read_steps(value, path, global, problems);
    if (!steps) return std::nullopt;
    for (const BatchStep& step : *steps) {
      if (step.size % micro_batches == 0) continue;
      return refuse(fmt::format("a batch of {} is not divisible by {}, a micro-batch of every rank",
                                step.size,
                                micro_batches),
                    fmt::format("choose sizes among the multiples of {}", micro_batches));
    }
    return BatchRamp(std::move(*steps));
  }
  const auto options = options_of(value, path, problems);
  if (!options) return std::nullopt;
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
