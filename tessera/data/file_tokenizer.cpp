// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/file_tokenizer.h"

#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/data/small_file.h"
#include "tessera/data/tokenizers/settings.h"
#include "tessera/data/tokenizers/tokenizer_file.h"

namespace tessera::data {
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

std::optional<std::int32_t> end_by_id(const fs::path& path, std::int64_t size) {
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
    const auto& id = found->is_array() && !found->empty() ? found->front() : *found;
    if (id.is_number_integer() && id.get<std::int64_t>() >= 0 && id.get<std::int64_t>() < size)
      return static_cast<std::int32_t>(id.get<std::int64_t>());
  }
  return std::nullopt;
}

std::int32_t end_of(const fs::path& path, const tokenizers::Pipeline& pipeline) {
  if (const auto id = end_by_token(path, pipeline)) return *id;
  if (const auto id = end_by_id(path, pipeline.size())) return *id;
  for (const char* token :
       {"<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]", "<|im_end|>"}) {
    if (const auto id = pipeline.id_of(token)) return *id;
  }
  throw Error(Error::Kind::Format,
              path.string() + ": nothing says which token ends a text",
              "put eos_token into a tokenizer_config.json beside it");
}

}  // namespace

FileTokenizer::FileTokenizer(const fs::path& path)
    : FileTokenizer(path, tokenizers::read_tokenizer_file(path)) {}

FileTokenizer::FileTokenizer(const fs::path& path, tokenizers::TokenizerFile file)
    : pipeline_(std::move(file.parts), path.string()) {
  end_ = end_of(path, pipeline_);
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

std::string FileTokenizer::decode(const std::vector<std::int32_t>& ids) const {
  return pipeline_.decode(ids);
}

std::vector<std::int32_t> FileTokenizer::beginning() const {
  return pipeline_.prefix();
}

std::vector<std::int32_t> FileTokenizer::ending() const {
  return pipeline_.suffix();
}

}  // namespace tessera::data
