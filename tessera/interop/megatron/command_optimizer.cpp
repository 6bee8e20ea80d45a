// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/megatron/command_optimizer.h"

#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::interop::megatron {
namespace {

using Setting = ForeignFlags::Setting;

void set_word(Meaning& meaning, std::string_view key, const char* word, const Setting* from) {
  meaning.set(key, json::Value::string(word), from);
}

json::Value betas(const Meaning& meaning, const char* first, const char* second) {
  return json::Value::array({meaning.find(first)->value, meaning.find(second)->value});
}

// The coefficients of an iteration, of the library whose Muon Megatron-LM uses
// (Emerging-Optimizers, Apache License 2.0).
json::Value coefficients(Meaning& meaning) {
  const std::string type = meaning.text("@muon_coefficients");
  if (type == "simple") return json::parse("[3.4445, -4.7750, 2.0315]", type);
  if (type == "quintic") {
    return json::parse(
        "[4.0848, -6.8946, 2.9270, 3.9505, -6.3029, 2.6377, 3.7418, -5.5913, 2.3037, "
        "2.8769, -3.1427, 1.2046, 2.8366, -3.0525, 1.2012]",
        type);
  }
  meaning.refuse(
      fmt::format("{} {} is not supported", meaning.find("@muon_coefficients")->flag, type),
      "use quintic or simple");
  return json::Value::array();
}

// Momentum, orthogonalized, for matrices; Adam for vectors, tables and the head.
void set_muon(Meaning& meaning, const Setting& from) {
  set_word(meaning, "optimizer.type", "Muon", &from);
  meaning.copy("optimizer.momentum", meaning.find("@muon_momentum"));
  meaning.set("optimizer.nesterov",
              json::Value::boolean(meaning.is_on("@muon_nesterov")),
              meaning.find("@muon_nesterov"));
  meaning.set("optimizer.split_qkv",
              json::Value::boolean(!meaning.is_on("@muon_whole_qkv")),
              meaning.find("@muon_whole_qkv"));
  const Setting* const mode = meaning.find("@muon_scale_mode");
  const std::string scale = meaning.text("@muon_scale_mode");
  if (scale != "spectral" && scale != "shape_scaling" && scale != "unit_rms_norm") {
    meaning.refuse(fmt::format("{} {} is not supported", mode->flag, scale),
                   "use spectral, shape_scaling or unit_rms_norm");
  }
  set_word(meaning,
           "optimizer.adjust_lr_fn",
           scale == "shape_scaling" ? "original" : scale.c_str(),
           mode);
  meaning.copy("optimizer.scale_factor", meaning.find("@muon_scale"));
  meaning.copy("optimizer.ns_steps", meaning.find("@muon_steps"));
  meaning.set(
      "optimizer.ns_coefficients", coefficients(meaning), meaning.find("@muon_coefficients"));
  // The other modes orthogonalize a matrix as a whole, as here.
  if (meaning.text("@muon_tp_mode") == "blockwise" &&
      meaning.number("parallel.tensor.size").value_or(1) > 1)
    meaning.refuse(
        fmt::format("{} blockwise is not supported: a matrix is orthogonalized as a whole",
                    meaning.find("@muon_tp_mode")->flag),
        "use duplicated");
  if (meaning.text("@muon_scalars") != "adam")
    meaning.refuse(fmt::format("{} {} is not supported",
                               meaning.find("@muon_scalars")->flag,
                               meaning.text("@muon_scalars")),
                   "use adam");
  meaning.set("optimizer.betas", betas(meaning, "@beta1", "@beta2"), meaning.find("@beta2"));
  meaning.copy("optimizer.eps", meaning.find("@epsilon"));
}

}  // namespace

void set_optimizer(Meaning& meaning) {
  const std::string name = text::lower(meaning.text("@optimizer", "adam"));
  const Setting* const from = meaning.find("@optimizer");
  if (name == "adam") {
    set_word(meaning, "optimizer.type", "AdamW", from);
    meaning.set("optimizer.betas",
                json::Value::array({meaning.find("@beta1")->value, meaning.find("@beta2")->value}),
                meaning.find("@beta2"));
    meaning.copy("optimizer.eps", meaning.find("@epsilon"));
  } else if (name == "sgd") {
    set_word(meaning, "optimizer.type", "SGD", from);
    meaning.copy("optimizer.momentum", meaning.find("@momentum"));
  } else if (name == "lion") {
    set_word(meaning, "optimizer.type", "Lion", from);
    meaning.set("optimizer.betas",
                json::Value::array(
                    {meaning.find("@lion_beta1")->value, meaning.find("@lion_beta2")->value}),
                from);
  } else if (name == "muon" || name == "dist_muon") {
    set_muon(meaning, *from);
  } else {
    meaning.refuse(fmt::format("{} {} is not supported", from->flag, name),
                   "use adam, sgd, lion or muon");
  }
}

}  // namespace tessera::interop::megatron
