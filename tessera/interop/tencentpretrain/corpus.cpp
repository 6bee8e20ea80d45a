// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/tencentpretrain/corpus.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"

namespace tessera::interop::tencentpretrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "corpus of TencentPretrain's preprocess.py";

constexpr auto kProcessors = std::to_array<Processor>(
    {{"lm", Lines::Documents, R"({"type": "pretrain"})"},
     {"llm_pretrain", Lines::Documents, R"({"type": "pretrain"})"},
     {"mlm", Lines::Documents, R"({"type": "masked_lm"})"},
     {"bert", Lines::Sentences, R"({"type": "masked_lm", "params": {"pairs": "nsp"}})"},
     {"albert", Lines::Sentences, R"({"type": "masked_lm", "params": {"pairs": "sop"}})"},
     {"t5", Lines::Documents, R"({"type": "span_corruption"})"},
     {"mt",
      Lines::Pairs,
      R"({"type": "seq2seq", "params": {"source_field": "prompt", "target_field": "completion"}})"},
     {"prefixlm", Lines::Pairs, R"({"type": "prefix_lm", "params": {"records": true}})"},
     {"cls", Lines::Labelled, R"({"type": "classify", "params": {"text_field": "text_a"}})"},
     {"llm_sft", Lines::Records, R"({"type": "sft"})"}});

json::Value text_value(std::string_view word) {
  return json::Value::string(std::string(word));
}

// A label that is an integer is a class by its number.
json::Value label_value(const std::string& word) {
  const bool digits =
      !word.empty() && word.size() < 10 && word.find_first_not_of("0123456789") == word.npos;
  return digits ? json::Value::integer(std::stoll(word)) : json::Value::string(word);
}

class LineReader {
 public:
  LineReader(const Corpus& corpus, Lines lines, bool json_lines)
      : name_(corpus.data), lines_(lines), json_lines_(json_lines) {}

  // The record of a line; null for a line without text.
  json::Value record(const std::string& line) {
    ++number_;
    if (text::trim(line).empty()) return {};
    if (lines_ == Lines::Records || json_lines_) return object_in(line);
    if (lines_ == Lines::Documents) return json::Value::object({{"text", text_value(line)}});
    const std::vector<std::string> cells = text::split(line, '\t');
    const bool labelled = lines_ == Lines::Labelled;
    TESSERA_REQUIRE(cells.size() == 2 || (labelled && cells.size() == 3),
                    Data,
                    fmt::format("{}:{}: expected {} between tabs, found {} columns",
                                name_,
                                number_,
                                labelled ? "a label and one or two texts" : "two texts",
                                cells.size()),
                    labelled ? "label<TAB>text<TAB>text" : "source<TAB>target");
    if (!labelled)
      return json::Value::object(
          {{"prompt", text_value(cells[0])}, {"completion", text_value(cells[1])}});
    json::Value out =
        json::Value::object({{"label", label_value(cells[0])}, {"text_a", text_value(cells[1])}});
    if (cells.size() == 3) out["text_b"] = text_value(cells[2]);
    return out;
  }

 private:
  json::Value object_in(const std::string& line) const {
    json::Value out = json::parse_strict(line, fmt::format("{}:{}", name_, number_));
    const bool text = lines_ == Lines::Records || !out.is_object() ||
                      (out.find("text") != nullptr && out.find("text")->is_string());
    TESSERA_REQUIRE(out.is_object() && text,
                    Data,
                    fmt::format("{}:{}: expected an object{}",
                                name_,
                                number_,
                                lines_ == Lines::Records ? "" : " with a \"text\""),
                    "{\"text\": \"...\"}");
    return out;
  }

  std::string name_;
  Lines lines_;
  bool json_lines_;
  std::int64_t number_ = 0;
};

std::int64_t write_records(const Corpus& corpus,
                           const Processor& processor,
                           const fs::path& out,
                           bool json_lines) {
  std::ifstream in(corpus.data, std::ios::binary);
  TESSERA_REQUIRE(
      in.good(), Io, fmt::format("{} cannot be read", corpus.data), "check its permissions");
  const fs::path draft = out.string() + ".part";
  std::int64_t count = 0;
  {
    std::ofstream file(draft, std::ios::binary | std::ios::trunc);
    LineReader reader(corpus, processor.lines, json_lines);
    for (std::string line; std::getline(in, line);) {
      if (line.ends_with('\r')) line.pop_back();
      const json::Value record = reader.record(line);
      if (record.is_null()) continue;
      file << record.dump() << '\n';
      ++count;
    }
    file.close();
    TESSERA_REQUIRE(
        file.good(), Io, fmt::format("{} cannot be written", draft.string()), "free space");
  }
  std::error_code failed;
  if (count > 0) fs::rename(draft, out, failed);
  if (count == 0 || failed) fs::remove(draft);
  TESSERA_REQUIRE(count > 0, Data, fmt::format("{} has no text", corpus.data), "name another file");
  TESSERA_REQUIRE(!failed,
                  Io,
                  fmt::format("{} cannot be written: {}", out.string(), failed.message()),
                  "choose another --dataset_path");
  return count;
}

std::int64_t integer_in(const json::Value& value, const char* key, std::int64_t absent) {
  const json::Value* const found = value.find(key);
  if (found == nullptr || !found->is_number()) return absent;
  return found->as_integer().value_or(absent);
}

std::string text_in(const json::Value& value, const char* key) {
  const json::Value* const found = value.find(key);
  return found != nullptr && found->is_string() ? found->as_string() : "";
}

bool switch_in(const json::Value& value, const char* key) {
  const json::Value* const found = value.find(key);
  return found != nullptr && found->is_bool() && found->as_bool();
}

}  // namespace

const Processor* find_processor(std::string_view name) {
  const auto found =
      std::ranges::find_if(kProcessors, [&](const Processor& one) { return one.name == name; });
  return found == kProcessors.end() ? nullptr : &*found;
}

std::vector<std::string> processor_names() {
  std::vector<std::string> out;
  for (const Processor& one : kProcessors)
    out.emplace_back(one.name);
  return out;
}

json::Value to_json(const Corpus& corpus) {
  const auto number = [](std::int64_t value) { return json::Value::integer(value); };
  const auto flag = [](bool value) { return json::Value::boolean(value); };
  json::Value out = json::Value::object({{"format", text_value(kFormat)},
                                         {"processor", text_value(corpus.processor)},
                                         {"data", text_value(corpus.data)},
                                         {"sequence_length", number(corpus.sequence_length)},
                                         {"target_length", number(corpus.target_length)},
                                         {"copies", number(corpus.copies)},
                                         {"short_pairs", json::Value::number(corpus.short_pairs)},
                                         {"dynamic", flag(corpus.dynamic)},
                                         {"whole_words", flag(corpus.whole_words)}});
  if (!corpus.tokenizer.is_null()) out["tokenizer"] = corpus.tokenizer;
  return out;
}

Corpus corpus_of(const json::Value& value, const std::string& name) {
  TESSERA_REQUIRE(value.is_object() && text_in(value, "format") == kFormat,
                  Config,
                  fmt::format("{} is not a corpus that tessera prepared", name),
                  "write it with: tessera python3 preprocess.py --corpus_path TEXT ...");
  Corpus out;
  out.processor = text_in(value, "processor");
  out.data = text_in(value, "data");
  out.sequence_length = integer_in(value, "sequence_length", out.sequence_length);
  out.target_length = integer_in(value, "target_length", out.target_length);
  out.copies = integer_in(value, "copies", out.copies);
  const json::Value* const pairs = value.find("short_pairs");
  if (pairs != nullptr && pairs->is_number()) out.short_pairs = pairs->as_double();
  out.dynamic = switch_in(value, "dynamic");
  out.whole_words = switch_in(value, "whole_words");
  if (const json::Value* const tokenizer = value.find("tokenizer")) out.tokenizer = *tokenizer;
  return out;
}

Corpus read_corpus(const fs::path& path) {
  // Far more than a description has; TencentPretrain's own file may have gigabytes.
  constexpr std::uintmax_t kMost = 65536;
  std::error_code failed;
  TESSERA_REQUIRE(fs::is_regular_file(path, failed),
                  Config,
                  fmt::format("{} does not exist", path.string()),
                  "write it with: tessera python3 preprocess.py --corpus_path TEXT ...");
  json::Value value;
  try {
    if (fs::file_size(path, failed) <= kMost)
      value = json::parse_strict(files::read(path), path.string());
  } catch (const Error&) {
    // another file: corpus_of() says so
  }
  return corpus_of(value, path.string());
}

std::optional<std::int64_t> write_corpus(Corpus corpus, const fs::path& out, bool json_lines) {
  const Processor* const processor = find_processor(corpus.processor);
  TESSERA_REQUIRE(processor != nullptr,
                  Config,
                  fmt::format("--data_processor {} is not supported", corpus.processor),
                  text::suggestion(corpus.processor, processor_names()));
  std::error_code failed;
  TESSERA_REQUIRE(fs::is_regular_file(corpus.data, failed),
                  Config,
                  fmt::format("--corpus_path {}: there is no such file", corpus.data),
                  "name a file of text");
  std::optional<std::int64_t> count;
  if (processor->lines == Lines::Sentences) {
    corpus.data = fs::absolute(corpus.data).string();
  } else {
    const fs::path records = out.string() + ".jsonl";
    count = write_records(corpus, *processor, records, json_lines);
    corpus.data = fs::absolute(records).string();
  }
  files::write_atomic(out, to_json(corpus).dump(2) + "\n");
  return count;
}

}  // namespace tessera::interop::tencentpretrain
