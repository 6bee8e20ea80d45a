// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/megatron/flags.h"

#include <charconv>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::interop {
namespace {

json::Value number_or_word(const std::string& text, const std::string& flag) {
  try {
    json::Value out = json::parse(text, flag);
    if (out.is_number()) return out;
  } catch (const Error&) {
    // Python also writes ".01" and "1."
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (whole && std::isfinite(value)) return json::Value::number(value);
  return json::Value::string(text);
}

}  // namespace

void add_megatron_rate(const std::string& typed,
                       std::string_view parameter,
                       const std::string& value,
                       ForeignFlags& out) {
  out.settings.push_back({typed, "scheduler.type", json::Value::string("Megatron")});
  out.settings.push_back(
      {typed, fmt::format("scheduler.params.{}", parameter), number_or_word(value, typed)});
}

void add_split(const std::string& typed, const std::string& value, ForeignFlags& out) {
  std::vector<double> shares;
  double sum = 0;
  bool good = true;
  for (const std::string& part : text::split(value, ',')) {
    const json::Value share = number_or_word(std::string(text::trim(part)), typed);
    good = good && share.is_number() && share.as_double() >= 0;
    shares.push_back(share.is_number() ? share.as_double() : 0.0);
    sum += shares.back();
  }
  TESSERA_REQUIRE(good && shares.size() <= 3 && sum > 0 && shares.front() > 0,
                  Config,
                  fmt::format("{} {}: expected up to three shares", typed, value),
                  "--split 949,50,1, or --set data.validation_fraction=0.05");
  const double validation = shares.size() > 1 ? shares[1] / sum : 0.0;
  out.settings.push_back({typed, "data.validation_fraction", json::Value::number(validation)});
  if (shares.size() == 3 && shares[2] > 0) {
    out.notes.push_back(
        fmt::format("{} {}: the share of test data is trained; data.test names separate test data",
                    typed,
                    value));
  }
}

void add_drop_policy(const std::string& typed, const std::string& value, ForeignFlags& out) {
  TESSERA_REQUIRE(value == "probs" || value == "position",
                  Config,
                  fmt::format("{} {}: no such policy", typed, value),
                  "probs or position");
  out.settings.push_back({typed,
                          "model.moe.drop",
                          json::Value::string(value == "probs" ? "probability" : "position")});
}

void add_balancing(const std::string& typed, const std::string& value, ForeignFlags& out) {
  if (value == "aux_loss") return;
  if (value == "none") {
    out.settings.push_back({typed, "model.moe.losses.balance", json::Value::number(0.0)});
    return;
  }
  throw Error(Error::Kind::Unsupported,
              fmt::format("{} {}: this loss is not built", typed, value),
              value == "seq_aux_loss"
                  ? "remove it, and give --set model.moe.losses.sequence_balance=0.01 and --set "
                    "model.moe.losses.balance=0"
                  : "use aux_loss, whose value does not depend on the order of micro-batches");
}

}  // namespace tessera::interop
