// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/huggingface/tokenizer_files.h"

#include <filesystem>

#include "tessera/config/json.h"
#include "tessera/text/small_file.h"
#include "tessera/text/tokenizer_json.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;

json::Value tokenizer_config(const char* type, std::int64_t max_positions) {
  return json::Value::object({{"tokenizer_class", json::Value::string(type)},
                              {"model_max_length", json::Value::integer(max_positions)},
                              {"clean_up_tokenization_spaces", json::Value::boolean(false)}});
}

json::Value gpt2_tokenizer_config(const char* type, std::int64_t max_positions) {
  json::Value config = tokenizer_config(type, max_positions);
  config["add_prefix_space"] = json::Value::boolean(false);
  for (const char* token : {"bos_token", "eos_token", "unk_token"})
    config[token] = json::Value::string("<|endoftext|>");
  return config;
}

}  // namespace

void add_tokenizer_files(std::vector<std::pair<std::string, std::string>>& files,
                         const text::TokenizerOptions& options,
                         std::int64_t max_positions) {
  constexpr const char* kFromTokenizerJson = "PreTrainedTokenizerFast";
  json::Value config;
  if (options.type == "byte") {
    config = tokenizer_config(kFromTokenizerJson, max_positions);
    for (const char* token : {"bos_token", "eos_token"})
      config[token] = json::Value::string(std::string(1, '\0'));
    files.emplace_back("tokenizer.json", text::byte_tokenizer_json());
  } else if (options.type == "file") {
    const fs::path whole = options.vocab;
    files.emplace_back(whole.filename().string(), text::read_small_file(whole));
    for (const char* name : {"tokenizer_config.json",
                             "special_tokens_map.json",
                             "added_tokens.json",
                             "chat_template.jinja"}) {
      const fs::path other = whole.parent_path() / name;
      if (fs::exists(other)) files.emplace_back(name, text::read_small_file(other));
    }
    return;
  } else if (!options.vocab.empty() && options.merges.empty()) {
    config = gpt2_tokenizer_config(kFromTokenizerJson, max_positions);
    files.emplace_back("tokenizer.json", text::read_small_file(options.vocab));
  } else {
    const fs::path shipped = text::share_dir() / "gpt2";
    const bool own = !options.vocab.empty();
    const std::string vocab =
        text::read_small_file(own ? fs::path(options.vocab) : shipped / "vocab.json");
    const std::string merges =
        text::read_small_file(own ? fs::path(options.merges) : shipped / "merges.txt");
    files.emplace_back("vocab.json", vocab);
    files.emplace_back("merges.txt", merges);
    files.emplace_back("tokenizer.json", text::gpt2_tokenizer_json(vocab, merges));
    config = gpt2_tokenizer_config("GPT2Tokenizer", max_positions);
  }
  files.emplace_back("tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace tessera::interop
