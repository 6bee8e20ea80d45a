// SPDX-License-Identifier: Apache-2.0
// Properties of every family, and that only a family's own file mentions it.
#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/interop/weights_of.h"
#include "tessera/models/family.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;

/// A line that means a tokenizer of the same name, a name in an example of the command line, or the
/// default of another program's key.
bool is_other_meaning(const std::string& line) {
  // The scaling of rotary positions that Llama 3 introduced has its name in every family.
  constexpr std::array<std::string_view, 11> kMarks = {
      "okenizer",
      "share_dir()",
      "\"tessera ",
      "--model ",
      "lama3",
      "eigenvalue.layer_name",
      "Normalizer",
      // The tokenizer of that name, which is built in.
      "openai-community/gpt2",
      // The layout of a GGUF file, which several families share.
      "stored_as",
      // TencentPretrain's words for norms.
      "layernorm",
      // TencentPretrain's processors of texts, which it names for what they prepare.
      "Lines::"};
  // Keys of other programs in which "opt" is short for optimizer or optimization.
  constexpr std::array<std::string_view, 3> kShortened = {
      "opt_level", "opt_param_scheduler", "offload_opt_states"};
  const auto is_in_line = [&](std::string_view mark) {
    return line.find(mark) != std::string::npos;
  };
  return std::ranges::any_of(kMarks, is_in_line) || std::ranges::any_of(kShortened, is_in_line);
}

/// Returns whether the line contains the word other than as a part of a longer one: "bert" is not a
/// word of "roberta". A number may follow it.
bool has_word(const std::string& line, const std::string& word) {
  const auto is_letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  for (std::size_t at = line.find(word); at != std::string::npos; at = line.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool begins = at == 0 || !is_letter(line[at - 1]);
    // In CamelCase the next word may follow at once.
    const bool ends =
        end == line.size() || std::islower(static_cast<unsigned char>(line[end])) == 0;
    if (begins && ends) return true;
  }
  return false;
}

/// Returns "file:line: text" for each line of code that contains the word, except in the family's
/// files and among the tokenizers.
std::vector<std::string> lines_that_name(const std::string& family, const std::string& word) {
  const fs::path root = test::source_dir() / "tessera";
  std::vector<std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const fs::path& path = entry.path();
    if (path.extension() != ".h" && path.extension() != ".cpp") continue;
    const fs::path folder = path.parent_path().filename();
    const std::string stem = path.stem().string();
    // A variant of a family is in the family's file ("xlm-roberta"), and a later version builds on
    // the first ("gemma2" on "gemma").
    const bool version = stem.size() > family.size() && stem.starts_with(family) &&
                         std::isdigit(static_cast<unsigned char>(stem[family.size()])) != 0;
    // The name of another family may continue it: "qwen3_moe".
    const bool kin = stem.starts_with(family + "_") && families().has(stem);
    const bool own = stem == family || family.ends_with("-" + stem) || version || kin;
    // A command of another program names the family that its script trains.
    const bool command =
        stem.starts_with("command") || stem == "model_rules" || stem == "rlhf_scripts";
    // Names of llama.cpp for the splits of tokenizers are those of the models that had them first.
    const bool tokenizer = folder == "text" || folder == "tokenizers" || stem == "splits";
    if (tokenizer || (folder == "models" && own) || command) continue;
    std::ifstream in(path);
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
      const std::string code = line.substr(0, line.find("//"));
      if (has_word(code, word) && !is_other_meaning(code))
        out.push_back(path.string() + ":" + std::to_string(number) + ": " + line);
    }
  }
  return out;
}

TEST(Families, AreNamedInTheirOwnFilesAlone) {
  for (const std::string& family : families().names()) {
    std::string type = family;
    type[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(type[0])));

    // "compose" is also a common word: only in quotes it names the family.
    const bool word = family == "compose";
    EXPECT_THAT(lines_that_name(family, word ? "\"compose\"" : family), testing::IsEmpty());
    EXPECT_THAT(lines_that_name(family, word ? "\"Compose\"" : type), testing::IsEmpty());
  }
}

Resolved resolved(const ModelOptions& options) {
  config::Problems problems;
  Resolved out = resolve(options, 256, 16, problems, config::Origins());
  problems.raise();
  return out;
}

TEST(Families, OneOfThemIsTheDefault) {
  int defaults = 0;
  for (const std::string& family : families().names())
    defaults += families().get(family).is_default ? 1 : 0;

  EXPECT_EQ(defaults, 1);
  EXPECT_EQ(ModelOptions().family(), default_family());
}

TEST(Families, StoreEveryElementOfTheirParametersOnce) {
  for (const std::string& family : families().names()) {
    SCOPED_TRACE(family);
    const Parameters parameters = nn::parameters_of(resolved(ModelOptions(family)).model);
    const WeightMap& map = families().get(family).weight_map;
    std::int64_t ours = 0, theirs = 0;
    bool anchored = false;
    for (const auto& info : parameters) {
      EXPECT_EQ(map.compose(*info).shape(), info->shape) << info->name;
      ours += info->numel();
    }
    for (const TheirTensor& tensor : their_tensors(map, parameters)) {
      std::int64_t numel = 1;
      for (const std::int64_t size : tensor.shape)
        numel *= size;
      theirs += numel;
      anchored |= tensor.name == map.anchor;
    }
    EXPECT_EQ(ours, theirs);
    EXPECT_TRUE(anchored) << map.anchor;
  }
}

TEST(Families, ReadBackTheirDescriptionAndTheirHuggingFaceConfig) {
  for (const std::string& family : families().names()) {
    SCOPED_TRACE(family);
    const Resolved first = resolved(ModelOptions(family));
    ModelOptions again;
    config::Problems problems;
    config::Origins origins;
    config::read(first.description, again, problems, origins);
    problems.raise();

    EXPECT_EQ(again.family(), family);
    EXPECT_TRUE(resolved(again).description == first.description);
    const json::Value hf = families().get(family).to_hf(*again);
    EXPECT_EQ(family_of_hf(hf), family);
    EXPECT_EQ(resolved(options_from_hf(hf)).num_parameters, first.num_parameters);
  }
}

// transformers 5 refuses "initializer_factor": 1.
TEST(Families, WriteWholeRealNumbersWithAPoint) {
  int seen = 0;
  for (const std::string& family : families().names()) {
    SCOPED_TRACE(family);
    ModelOptions options;
    config::Problems problems;
    config::Origins origins;
    config::read(resolved(ModelOptions(family)).description, options, problems, origins);
    problems.raise();
    const json::Value hf = families().get(family).to_hf(*options);
    for (const char* key : {"initializer_factor",
                            "initializer_range",
                            "dropout_rate",
                            "attention_dropout",
                            "hidden_dropout_prob",
                            "attn_logit_softcapping",
                            "final_logit_softcapping"}) {
      const json::Value* const value = hf.find(key);
      if (value == nullptr || value->is_null()) continue;
      EXPECT_NE(value->dump().find_first_of(".e"), std::string::npos) << key << value->dump();
      ++seen;
    }
  }
  EXPECT_GT(seen, 20);
}

TEST(Families, HaveAdjustableKeysThatTheyDeclare) {
  for (const std::string& family : families().names()) {
    ModelOptions options(family);
    const json::Value defaults = config::write(options);
    for (const std::string& preset : names_of(families().get(family).presets)) {
      ModelOptions with = options;
      with.choose_preset(preset);
      EXPECT_GT(resolved(with).num_parameters, 0) << preset;
    }
    for (const Adjustable& key : families().get(family).adjustable) {
      const auto reads = [&](const json::Value& value) {
        json::Value object = json::Value::object({{"family", json::Value::string(family)}});
        json::Value* place = &object;
        std::istringstream path(key.key);
        for (std::string part; std::getline(path, part, '.');)
          place = &(*place)[part];
        *place = value;
        config::Problems problems;
        config::Origins origins;
        ModelOptions read;
        config::read(object, read, problems, origins);
        return problems.empty() && read.has(key.key);
      };
      // A rate, a number of tokens, a flag or a rule.
      EXPECT_TRUE(reads(json::Value::number(0.5)) || reads(json::Value::integer(1)) ||
                  reads(json::Value::boolean(true)) || reads(json::Value::string("position")))
          << family << " " << key.key;
    }
  }
}

}  // namespace
}  // namespace tessera::models
