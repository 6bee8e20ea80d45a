// SPDX-License-Identifier: Apache-2.0
// Preference optimisation: a decoder learns to prefer one completion of a prompt to another, from
// pairs or from completions labelled as desirable or undesirable.
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/tasks/preference_task_base.h"

namespace tessera::tasks {
namespace {

enum class Method : std::uint8_t { Dpo, Cpo, SimPo, Orpo, Kto };
constexpr auto kMethods = std::to_array<config::Named<Method>>({{Method::Dpo, "dpo"},
                                                                {Method::Cpo, "cpo"},
                                                                {Method::SimPo, "simpo"},
                                                                {Method::Orpo, "orpo"},
                                                                {Method::Kto, "kto"}});

struct PreferOptions {
  Method method = Method::Dpo;
  bool reference_free = false;
  std::string chat_template;
  json::Value loss = json::Value::object();
  void describe(config::Fields& fields) {
    fields.choice("method",
                  method,
                  kMethods,
                  {.text = "The loss: for pairs with a reference (dpo), for pairs without one "
                           "(cpo, simpo, orpo), or for labelled completions (kto)."});
    fields.field("reference_free",
                 reference_free,
                 {.text = "With dpo: use a reference under which all completions are equally "
                          "probable, instead of the initial model."});
    describe_chat_template(chat_template, fields);
    fields.field("loss",
                 loss,
                 {.text = "Options of the method, such as {\"type\": \"ipo\", \"beta\": 0.1}; see "
                          "docs/preferences.md.",
                  .type = "object"});
  }
};

class Prefer final : public PreferenceTaskBase {
 public:
  explicit Prefer(PreferOptions options)
      : PreferenceTaskBase(
            {.kind =
                 options.method == Method::Kto ? PreferenceKind::Labelled : PreferenceKind::Pairs,
             .reference = (options.method == Method::Dpo && !options.reference_free) ||
                          options.method == Method::Kto,
             .chat_template = options.chat_template}),
        options_(std::move(options)) {}

  [[nodiscard]] std::string objective() const override {
    switch (options_.method) {
      case Method::Dpo:
        return "preference";
      case Method::Orpo:
        return "orpo";
      case Method::Kto:
        return "kto";
      default:
        return "cpo";
    }
  }
  [[nodiscard]] json::Value objective_options(const data::DataOptions& /*data*/) const override {
    json::Value out = options_.loss;
    if (options_.reference_free) out["reference_free"] = json::Value::boolean(true);
    if (options_.method == Method::SimPo) out["type"] = json::Value::string("simpo");
    return out;
  }

 private:
  PreferOptions options_;
};

std::unique_ptr<Task> make_prefer(const json::Value& params,
                                  config::Problems& problems,
                                  config::Origins& origins) {
  PreferOptions options;
  config::read(params, options, problems, origins);
  if (!options.loss.is_object()) {
    problems.add(origins.place("loss"),
                 "loss",
                 fmt::format("loss is {}", options.loss.type_name()),
                 "write {\"type\": \"sigmoid\", \"beta\": 0.1}, say");
    options.loss = json::Value::object();
  }
  if (options.reference_free && options.method != Method::Dpo) {
    problems.add(origins.place("reference_free"),
                 "reference_free",
                 "reference_free is of the method dpo alone",
                 "remove it: cpo, simpo and orpo have no reference, and kto needs one");
  }
  if (options.method == Method::SimPo && options.loss.find("type") != nullptr) {
    problems.add(origins.place("loss"),
                 "loss",
                 "the method simpo has one loss, and loss.type names another",
                 "remove loss.type, or set method to cpo");
  }
  return std::make_unique<Prefer>(std::move(options));
}

TESSERA_TASK("prefer", make_prefer);

}  // namespace
}  // namespace tessera::tasks
