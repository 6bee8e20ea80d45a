// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/megatron/command_data.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/hub.h"
#include "tessera/base/text.h"
#include "tessera/interop/megatron/flags.h"
#include "tessera/interop/megatron/mock_data.h"

namespace tessera::interop::megatron {
namespace {

using Setting = ForeignFlags::Setting;

constexpr std::int64_t kGpt2Tokens = 50257;

void set_word(Meaning& meaning, std::string_view key, const char* word, const Setting* from) {
  meaning.set(key, json::Value::string(word), from);
}

std::optional<std::int64_t> size_of_vocabulary(const std::string& file) {
  try {
    const json::Value words = json::parse_strict(files::read(file), file);
    if (words.is_object()) return static_cast<std::int64_t>(words.members().size());
  } catch (const Error&) {
    // The tokenizer reports what is wrong with the file.
  }
  return std::nullopt;
}

std::optional<std::int64_t> lines_of(const std::string& file) {
  try {
    const std::string text = files::read(file);
    const bool open = !text.empty() && text.back() != '\n';
    return std::count(text.begin(), text.end(), '\n') + (open ? 1 : 0);
  } catch (const Error&) {
    return std::nullopt;  // the tokenizer reports what is wrong with the file
  }
}

void set_tokenizer_file(Meaning& meaning, const Setting& model) {
  namespace fs = std::filesystem;
  fs::path path = hub::model_path(model.value.as_string());
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.txt"}) {
      if (fs::exists(path / name, ignored)) {
        path /= name;
        break;
      }
    }
  }
  if (!fs::is_regular_file(path, ignored)) {
    meaning.refuse(fmt::format("{} {}: there is no such tokenizer on this machine",
                               model.flag,
                               model.value.as_string()),
                   hub::how_to_fetch(model.value.as_string()));
    return;
  }
  set_word(meaning, "tokenizer.type", "file", &model);
  meaning.set("tokenizer.vocab", json::Value::string(path.string()), &model);
}

// The rows of the token embedding: Megatron-LM rounds them up.
void pad_vocabulary(Meaning& meaning, std::int64_t tokens, const Setting* from) {
  if (meaning.value("model.vocab_size") != nullptr) return;
  const double tensor = meaning.number("parallel.tensor.size").value_or(1);
  const auto multiple =
      static_cast<std::int64_t>(meaning.number("@vocab_multiple").value_or(128) * tensor);
  const bool pads = !meaning.is_on("@no_pad");
  const std::int64_t rows = pads ? (tokens + multiple - 1) / multiple * multiple : tokens;
  meaning.set("model.vocab_size", json::Value::integer(rows), from);
}

bool is_t5(const Meaning& meaning) {
  return std::filesystem::path(meaning.script).filename().string().find("t5") != std::string::npos;
}

// Behind the words of a vocabulary T5 has tokens that begin and end answers, and then the
// sentinels, of which spans are replaced by the first ones.
void set_spans(Meaning& meaning, std::int64_t words, const Setting& vocab) {
  const Setting* const extra = meaning.find("@extra_ids");
  const auto sentinels = static_cast<std::int64_t>(meaning.number("@extra_ids").value_or(0));
  if (sentinels < 1) {
    meaning.refuse(fmt::format("{} without tokens that replace spans", meaning.program),
                   "add --vocab-extra-ids 100");
    return;
  }
  const auto set = [&](const char* key, std::int64_t value, const Setting* from) {
    meaning.set(key, json::Value::integer(value), from);
  };
  set("model.start_token", words, &vocab);
  set("task.params.end_id", words + 1, &vocab);
  set("task.params.sentinel_id", words + 2, extra);
  set("task.params.num_sentinels", sentinels, extra);
  pad_vocabulary(meaning, words + 2 + sentinels, extra);
}

// "W1 P1 W2 P2", "P1 P2", or P: prefixes of .bin and .idx files.
json::Value token_file(const std::string& prefix) {
  std::error_code ignored;
  const bool bare = !std::filesystem::exists(prefix, ignored);
  return json::Value::string(bare ? prefix + ".bin" : prefix);
}

bool is_number(const std::string& word) {
  return !word.empty() && word.find_first_not_of("0123456789.eE+-") == std::string::npos;
}

void set_sources(Meaning& meaning, const Setting& data, const char* key) {
  std::vector<std::string> words;
  for (const json::Value& item : data.value.items()) {
    for (const std::string& word : text::split(item.as_string(), ' ')) {
      if (!word.empty()) words.push_back(word);
    }
  }
  const bool weighted = words.size() >= 2 && words.size() % 2 == 0 && is_number(words[0]);
  if (!weighted || words.size() == 2) {
    json::Value paths = json::Value::array();
    for (const std::string& word : words) {
      if (!weighted || !is_number(word)) paths.push_back(token_file(word));
    }
    meaning.set(key, paths.items().size() == 1 ? paths.items().front() : paths, &data);
    return;
  }
  if (std::string_view(key) != "data.train") {
    meaning.refuse(
        fmt::format("{}: evaluations read all of their data, without weights", data.flag),
        "remove the weights");
    return;
  }
  json::Value sources = json::Value::array();
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
    sources.push_back(json::Value::object(
        {{"path", token_file(words[i + 1])}, {"weight", json::parse(words[i], data.flag)}}));
  }
  meaning.set("data.sources", std::move(sources), &data);
}

void set_mock_data(Meaning& meaning) {
  const json::Value* const type = meaning.value("tokenizer.type");
  const bool gpt2 = type != nullptr && type->as_string() == "gpt2";
  const auto given = static_cast<std::int64_t>(meaning.number("@vocab_size").value_or(0));
  const std::int64_t end = gpt2 ? kGpt2Tokens - 1 : given;
  const std::int64_t vocabulary = std::max<std::int64_t>(gpt2 ? kGpt2Tokens : given, 2);
  const Setting* const from = meaning.find("@mock");
  meaning.set("data.train", json::Value::string(mock_tokens(vocabulary, end).string()), from);
}

}  // namespace

void set_tokens(Meaning& meaning) {
  const Setting *const vocab = meaning.given("@vocab_file"),
                       *const merges = meaning.given("@merge_file"),
                       *const model = meaning.given("@tokenizer_model");
  const Setting* const type = meaning.given("@tokenizer_type");
  // The scripts of BERT and T5 have another default than those of GPT.
  const std::string script = std::filesystem::path(meaning.script).filename().string();
  const bool pairs =
      script.find("bert") != std::string::npos || script.find("t5") != std::string::npos;
  const char* const usual = vocab == nullptr    ? ""
                            : pairs             ? "BertWordPieceLowerCase"
                            : merges != nullptr ? "GPT2BPETokenizer"
                                                : "";
  const std::string name = meaning.text("@tokenizer_type", usual);
  if (const Setting* const extra = meaning.given("@extra_ids");
      extra != nullptr && extra->value.as_double() > 0 && !is_t5(meaning))
    meaning.refuse(fmt::format("{}: only pretrain_t5.py has such tokens", extra->flag),
                   "remove it");
  if (is_t5(meaning) && !name.starts_with("BertWordPiece"))
    meaning.refuse(fmt::format("{} with the tokenizer {}", meaning.program, name),
                   "use --tokenizer-type BertWordPieceCase with --vocab-file");
  if (name == "GPT2BPETokenizer") {
    set_word(meaning, "tokenizer.type", "gpt2", type);
    meaning.copy("tokenizer.vocab", vocab);
    meaning.copy("tokenizer.merges", merges);
    const auto counted =
        vocab == nullptr ? std::nullopt : size_of_vocabulary(vocab->value.as_string());
    pad_vocabulary(meaning, counted.value_or(kGpt2Tokens), vocab);
  } else if (name == "NullTokenizer") {
    // One more token ends a text.
    if (const Setting* const size = meaning.given("@vocab_size"))
      pad_vocabulary(meaning, size->value.as_integer().value_or(0) + 1, size);
  } else if (name.starts_with("BertWordPiece") && vocab != nullptr) {
    set_word(meaning, "tokenizer.type", "file", type);
    meaning.copy("tokenizer.vocab", vocab);
    if (const auto counted = lines_of(vocab->value.as_string())) {
      if (is_t5(meaning)) return set_spans(meaning, *counted, *vocab);
      pad_vocabulary(meaning, *counted, vocab);
    }
  } else if (model != nullptr) {
    set_tokenizer_file(meaning, *model);
  } else if (!name.empty()) {
    meaning.refuse(fmt::format("{} {} without its files", type->flag, name),
                   "add --tokenizer-model");
  }
}

void set_data(Meaning& meaning) {
  if (const Setting* const args = meaning.given("@data_args"))
    meaning.refuse(fmt::format("{} is not supported", args->flag),
                   "give its words with --data-path");
  const Setting *const data = meaning.given("@data"), *const train = meaning.given("@train_data"),
                       *const valid = meaning.given("@valid_data"),
                       *const test = meaning.given("@test_data");
  if (data != nullptr) set_sources(meaning, *data, "data.train");
  if (train != nullptr) set_sources(meaning, *train, "data.train");
  if (valid != nullptr) set_sources(meaning, *valid, "data.validation");
  if (test != nullptr) set_sources(meaning, *test, "data.test");
  const bool mock = meaning.is_on("@mock") && data == nullptr && train == nullptr;
  if (mock) set_mock_data(meaning);
  if (data == nullptr && train == nullptr && !mock)
    meaning.refuse(fmt::format("{} without data", meaning.program), "add --data-path");
  const Setting* const split = meaning.find("@split");
  if ((data != nullptr || mock) && split != nullptr) {
    ForeignFlags shares;
    add_split(split->flag, split->value.as_string(), shares);
    for (const Setting& share : shares.settings)
      meaning.set(share.key, share.value, &share);
    for (std::string& note : shares.notes)
      meaning.note(std::move(note));
  }
  for (const char* name : {"@reset_positions", "@reset_mask", "@mask_end"}) {
    if (meaning.is_on(name))
      meaning.set("data.separate_documents", json::Value::boolean(true), meaning.find(name));
  }
  const std::string loader = meaning.text("@loader", "single");
  if (loader == "external")
    meaning.refuse("--dataloader-type external is not supported", "use single or cyclic");
}

}  // namespace tessera::interop::megatron
