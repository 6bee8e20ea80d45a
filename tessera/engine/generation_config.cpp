// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/generation_config.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/comm/world.h"
#include "tessera/tasks/answer_ends.h"
#include "tessera/tasks/conversation.h"
#include "tessera/text/small_file.h"

namespace tessera::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostEnds = 4096;

/// One of the two files; it has no keys if it does not exist.
class Keys {
 public:
  explicit Keys(const fs::path& path) : path_(path.string()) {
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) return;
    value_ = json::parse_strict(text::read_small_file(path), path_);
    if (!value_.is_object()) refuse("is not a JSON object");
  }

  [[nodiscard]] bool exist() const { return value_.is_object(); }
  [[nodiscard]] const json::Value* find(const char* key) const {
    const json::Value* found = value_.is_object() ? value_.find(key) : nullptr;
    return found == nullptr || found->is_null() ? nullptr : found;
  }
  [[nodiscard]] bool flag(const char* key) const {
    const json::Value* found = find(key);
    return found != nullptr && found->is_bool() && found->as_bool();
  }
  [[nodiscard]] std::optional<double> number(const char* key, double least, double most) const {
    const json::Value* found = find(key);
    if (found == nullptr) return std::nullopt;
    const double value = found->is_number() ? found->as_double() : least - 1;
    if (!(value >= least && value <= most))
      refuse(
          fmt::format("says {} {}, which is not from {} to {}", key, found->dump(), least, most));
    return value;
  }
  [[nodiscard]] std::optional<std::int64_t> count(const char* key) const {
    constexpr double kMost = 1e9;
    const auto value = number(key, 0, kMost);
    return value ? std::optional(static_cast<std::int64_t>(*value)) : std::nullopt;
  }
  /// The ids below `size`; a key of others, such as -1, names none.
  [[nodiscard]] std::vector<std::int32_t> ids(const char* key, std::int64_t size) const {
    std::vector<std::int32_t> out;
    const json::Value* found = find(key);
    if (found == nullptr) return out;
    const auto add = [&](const json::Value& one) {
      const auto id = one.is_number() ? one.as_integer() : std::nullopt;
      if (!id) refuse(fmt::format("says {} {}, which is not an id", key, one.dump()));
      if (*id >= 0 && *id < size) out.push_back(static_cast<std::int32_t>(*id));
    };
    if (!found->is_array()) {
      add(*found);
      return out;
    }
    if (found->items().size() > kMostEnds) refuse(fmt::format("has too many ids in {}", key));
    for (const json::Value& one : found->items())
      add(one);
    return out;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(Error::Kind::Format,
                fmt::format("{}: {}", path_, what),
                "copy the file again from where the model was published, or correct it");
  }

  std::string path_;
  json::Value value_;
};

/// A key of transformers that changes texts and has no counterpart here, and its value that changes
/// nothing; absent: every value changes something.
struct Unapplied {
  const char* key;
  std::optional<double> harmless = {};
  const char* instead = "";
};
constexpr Unapplied kUnapplied[] = {{"num_beams", 1, " (see --beams)"},
                                    {"num_beam_groups", 1},
                                    {"diversity_penalty", 0},
                                    {"penalty_alpha", 0},
                                    {"guidance_scale", 1},
                                    {"min_length", 0},
                                    {"encoder_repetition_penalty", 1},
                                    {"encoder_no_repeat_ngram_size", 0},
                                    {"token_healing", 0},
                                    {"stop_strings", {}, " (see --stop)"},
                                    {"bad_words_ids"},
                                    {"suppress_tokens"},
                                    {"begin_suppress_tokens"},
                                    {"forced_bos_token_id"},
                                    {"forced_eos_token_id"},
                                    {"forced_decoder_ids"},
                                    {"force_words_ids"},
                                    {"constraints"},
                                    {"sequence_bias"},
                                    {"exponential_decay_length_penalty"},
                                    {"watermarking_config"},
                                    {"dola_layers"},
                                    {"top_h"}};

/// Names keys whose effect on texts is missing here.
void warn_of_unapplied(const Keys& keys, const fs::path& path) {
  std::vector<std::string> found;
  for (const Unapplied& one : kUnapplied) {
    const json::Value* const value = keys.find(one.key);
    if (value == nullptr) continue;
    const bool empty = (value->is_array() && value->items().empty()) ||
                       (value->is_object() && value->members().empty()) ||
                       (value->is_bool() && !value->as_bool()) ||
                       (one.harmless && value->is_number() && value->as_double() == *one.harmless);
    if (!empty) found.push_back(fmt::format("\"{}\"{}", one.key, one.instead));
  }
  if (found.empty()) return;
  log::warn(fmt::format("{}: not applied here, and transformers' texts depend on it: {}",
                        path.string(),
                        text::join(found, ", ")));
}

/// The tokens that end an answer by the tokenizer and the chat template.
std::vector<std::int32_t> ends_of_answers(const OpenModel& model) {
  if (model.tokenizer == nullptr) return {};
  std::optional<text::chat::ChatTemplate> chat;
  try {
    chat = chat_template_of(model);
  } catch (const Error& error) {
    // A prompt may be written without the template.
    log::warn_once(fmt::format("the chat template is not read: {}", error.what()));
  }
  return tasks::answer_ends(*model.tokenizer, chat ? &*chat : nullptr).ids;
}

}  // namespace

std::vector<fs::path> folders_of(const OpenModel& model) {
  std::vector<fs::path> out = {model.source, model.source.parent_path(), model.beside};
  std::error_code ignored;
  if (fs::is_directory(model.source, ignored)) out.erase(out.begin() + 1);
  if (!model.config) return out;
  const json::Value* const tokenizer = model.config->find("tokenizer");
  const json::Value* const vocab =
      tokenizer != nullptr && tokenizer->is_object() ? tokenizer->find("vocab") : nullptr;
  if (vocab != nullptr && vocab->is_string() && !vocab->as_string().empty())
    out.push_back(fs::path(vocab->as_string()).parent_path());
  return out;
}

std::optional<text::chat::ChatTemplate> chat_template_of(const OpenModel& model) {
  return tasks::open_chat_template(
      model.config ? tasks::chat_template_of(*model.config) : std::string(),
      folders_of(model),
      *model.tokenizer);
}

GenerationConfig generation_config_of(const OpenModel& model) {
  std::error_code ignored;
  const fs::path folder =
      fs::is_directory(model.source, ignored) ? model.source : model.source.parent_path();
  const fs::path path = folder / "generation_config.json";
  const Keys keys(path);
  if (model.world == nullptr || model.world->rank() == 0) warn_of_unapplied(keys, path);
  GenerationConfig out;
  // The configuration of a run in its checkpoint is tessera's own.
  const Keys config(model.config ? fs::path() : folder / "config.json");
  out.ends = ends_of_answers(model);
  for (const Keys* file : {&keys, &config}) {
    for (const std::int32_t id : file->ids("eos_token_id", model.shape.vocab_size)) {
      if (std::ranges::find(out.ends, id) == out.ends.end()) out.ends.push_back(id);
    }
  }
  out.repetition_penalty = keys.number("repetition_penalty", 1e-6, 1e6);
  out.no_repeat_ngram = keys.count("no_repeat_ngram_size");
  out.min_new_tokens = keys.count("min_new_tokens");
  if (!keys.flag("do_sample")) {
    // The default is that of transformers, whose do_sample is false. Other models have no such
    // default.
    if (keys.exist() || config.exist()) out.temperature = 0.0;
    return out;
  }
  out.temperature = keys.number("temperature", 0, 1e6);
  out.top_k = keys.count("top_k");
  out.top_p = keys.number("top_p", 1e-9, 1);
  out.min_p = keys.number("min_p", 0, 1);
  out.typical_p = keys.number("typical_p", 1e-9, 1);
  out.epsilon_cutoff = keys.number("epsilon_cutoff", 0, 1);
  out.eta_cutoff = keys.number("eta_cutoff", 0, 1);
  return out;
}

}  // namespace tessera::engine
