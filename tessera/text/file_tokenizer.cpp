// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/file_tokenizer.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/text/small_file.h"
#include "tessera/text/tokenizers/settings.h"
#include "tessera/text/tokenizers/tokenizer_file.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;
std::optional<std::int32_t> end_by_token(const fs::path& path,
                                         const tokenizers::Pipeline& pipeline) {
  const tokenizers::Settings settings(path.parent_path());
  for (const char* role : {"eos_token", "sep_token"}) {
    if (const auto token = settings.token(role))
      if (const auto id = pipeline.id_of(*token)) return id;
  }
  return std::nullopt;
}

std::optional<std::int32_t> padding_of(const fs::path& path, const tokenizers::Pipeline& pipeline) {
  const auto token = tokenizers::Settings(path.parent_path()).token("pad_token");
  return token ? pipeline.id_of(*token) : std::nullopt;
}

/// The ids of eos_token_id, one or several, in the files next to the tokenizer's.
std::vector<std::int32_t> ends_by_id(const fs::path& path, std::int64_t size) {
  std::vector<std::int32_t> out;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const fs::path file = path.parent_path() / name;
    std::error_code ignored;
    if (!fs::exists(file, ignored)) continue;
    const auto config = nlohmann::json::parse(read_small_file(file), nullptr, false);
    TESSERA_REQUIRE(config.is_object(),
                    Format,
                    file.string() + ": is not a JSON object",
                    "copy the file again from where the model was published");
    const auto found = config.find("eos_token_id");
    if (found == config.end()) continue;
    const auto one = nlohmann::json::array({*found});
    for (const auto& id : found->is_array() ? *found : one) {
      if (id.is_number_integer() && id.get<std::int64_t>() >= 0 && id.get<std::int64_t>() < size)
        out.push_back(static_cast<std::int32_t>(id.get<std::int64_t>()));
    }
  }
  return out;
}

std::int32_t end_of(const fs::path& path,
                    const tokenizers::Pipeline& pipeline,
                    const std::vector<std::int32_t>& by_id) {
  if (const auto id = end_by_token(path, pipeline)) return *id;
  if (!by_id.empty()) return by_id.front();
  for (const char* token :
       {"<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]", "<|im_end|>"}) {
    if (const auto id = pipeline.id_of(token)) return *id;
  }
  throw Error(Error::Kind::Format,
              path.string() + ": nothing says which token ends a text",
              "put eos_token into a tokenizer_config.json next to it");
}

}  // namespace

FileTokenizer::FileTokenizer(const fs::path& path)
    : FileTokenizer(path, tokenizers::read_tokenizer_file(path)) {}

FileTokenizer::FileTokenizer(const fs::path& path, tokenizers::TokenizerFile file)
    : pipeline_(std::move(file.parts), path.string()) {
  const std::vector<std::int32_t> by_id = ends_by_id(path, pipeline_.size());
  end_ = end_of(path, pipeline_, by_id);
  ends_ = {end_};
  for (const std::int32_t id : by_id) {
    if (std::ranges::find(ends_, id) == ends_.end()) ends_.push_back(id);
  }
  padding_ = padding_of(path, pipeline_).value_or(end_);
  for (std::int64_t id = 0; id < pipeline_.size(); ++id) {
    const auto token = static_cast<std::int32_t>(id);
    const std::string& text = pipeline_.token_of(token);
    bytes_.push_back(pipeline_.is_special(token) ? text : tokenizers::bytes_of_token(text, file));
  }
  fingerprint_ =
      fmt::format("file-{:016x}-{}", files::xxh3(std::as_bytes(std::span(file.content))), end_);
}

void FileTokenizer::encode(std::string_view text,
                           std::vector<std::int32_t>& out,
                           bool special) const {
  pipeline_.encode_ids(text, out, special);
}

std::string_view FileTokenizer::bytes_of(std::int32_t id) const {
  if (id < 0 || id >= static_cast<std::int64_t>(bytes_.size())) return {};
  return bytes_[static_cast<std::size_t>(id)];
}

bool FileTokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < size() && pipeline_.is_special(id);
}

std::string FileTokenizer::decode(const std::vector<std::int32_t>& ids) const {
  return pipeline_.decode(ids);
}

std::vector<std::int32_t> FileTokenizer::beginning() const {
  return pipeline_.prefix();
}

std::vector<std::int32_t> FileTokenizer::ending() const {
  return pipeline_.suffix();
}

JoinedIds FileTokenizer::join(const std::vector<std::int32_t>& first,
                              const std::vector<std::int32_t>& second) const {
  JoinedIds out;
  const auto append = [&out](const std::vector<std::int32_t>& ids, std::int32_t type) {
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.types.resize(out.ids.size(), type);
  };
  for (const auto& [id, type] : pipeline_.pair_frame()) {
    if (id == tokenizers::Pipeline::kFirst) {
      append(first, type);
    } else if (id == tokenizers::Pipeline::kSecond) {
      append(second, type);
    } else {
      append({id}, type);
    }
  }
  return out;
}

std::vector<std::pair<std::size_t, std::size_t>> FileTokenizer::encode_spans(
    std::string_view text, std::vector<std::int32_t>& out) const {
  const tokenizers::Encoding encoding = pipeline_.encode(text, /*special=*/false);
  out.insert(out.end(), encoding.ids.begin(), encoding.ids.end());
  // Offsets count code points; these are the bytes at which code points begin.
  std::vector<std::size_t> begins;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U) begins.push_back(i);
  }
  begins.push_back(text.size());
  const auto byte_at = [&](std::int64_t point) {
    return begins[std::min(static_cast<std::size_t>(point), begins.size() - 1)];
  };
  std::vector<std::pair<std::size_t, std::size_t>> spans;
  for (const auto& [begin, end] : encoding.offsets)
    spans.emplace_back(byte_at(begin), byte_at(end));
  return spans;
}

}  // namespace tessera::text
