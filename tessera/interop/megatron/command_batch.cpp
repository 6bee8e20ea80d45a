// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/megatron/command_batch.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/optim/batch_ramp.h"

namespace tessera::interop::megatron {
namespace {

using Setting = ForeignFlags::Setting;

// "960", "1K", "200B" tokens; -1 for another word.
double tokens_in(std::string word) {
  double factor = 1;
  for (const auto& [letter, value] :
       {std::pair('K', 1e3), std::pair('M', 1e6), std::pair('B', 1e9), std::pair('T', 1e12)}) {
    if (word.empty() || std::toupper(static_cast<unsigned char>(word.back())) != letter) continue;
    factor = value;
    word.pop_back();
    break;
  }
  try {
    const json::Value number = json::parse(word, "");
    if (number.is_number() && number.as_double() >= 0) return number.as_double() * factor;
  } catch (const Error&) {
    // not a number
  }
  return -1;
}

// "0:384 200B:768": a batch of 384, and of 768 from 200 billion tokens on. Returns the steps.
std::vector<optim::BatchStep> batch_steps(Meaning& meaning) {
  const Setting* const steps = meaning.given("@batch_steps");
  const double length = meaning.number("data.sequence_length").value_or(0);
  std::vector<optim::BatchStep> out;
  if (steps == nullptr || length <= 0) return out;
  for (const std::string& word : meaning.texts("@batch_steps")) {
    const std::size_t colon = word.find(':');
    const double tokens = tokens_in(word.substr(0, colon));
    const double size = colon == word.npos ? -1 : tokens_in(word.substr(colon + 1));
    const double before = out.empty() ? -1 : static_cast<double>(out.back().consumed);
    const double samples = std::ceil(tokens / length);
    const bool begins = !out.empty() || samples == 0;
    if (tokens < 0 || size < 1 || !begins || samples <= before || samples > 1e12 || size > 1e9) {
      meaning.refuse(fmt::format("{} {}: expected TOKENS:BATCH, from 0 tokens on and with growing "
                                 "numbers of tokens",
                                 steps->flag,
                                 word),
                     "\"0:384 200B:768\"");
      return {};
    }
    out.push_back({static_cast<std::int64_t>(samples), static_cast<std::int64_t>(size)});
  }
  return out;
}

}  // namespace

void set_batch_steps(Meaning& meaning) {
  const std::vector<optim::BatchStep> steps = batch_steps(meaning);
  if (steps.empty()) return;
  const Setting* const from = meaning.given("@batch_steps");
  json::Value list = json::Value::array();
  for (const optim::BatchStep& step : steps)
    list.push_back(
        json::Value::array({json::Value::integer(step.consumed), json::Value::integer(step.size)}));
  meaning.set("rampup_batch_size", std::move(list), from);
  meaning.set("train_batch_size", json::Value::integer(steps.back().size), from);
  const Setting* const samples = meaning.given("@train_samples");
  if (samples == nullptr || meaning.value("trainer.max_steps") != nullptr) return;
  // The updates are at least samples / size, and at most samples of them.
  const optim::BatchRamp ramp(steps);
  const auto wanted = static_cast<std::int64_t>(samples->value.as_double());
  std::int64_t low = 0, high = std::max<std::int64_t>(wanted, 1);
  while (low + 1 < high) {
    const std::int64_t middle = low + (high - low) / 2;
    (ramp.samples_before(middle + 1) < wanted ? low : high) = middle;
  }
  meaning.set("trainer.max_steps", json::Value::integer(high), samples);
}

}  // namespace tessera::interop::megatron
