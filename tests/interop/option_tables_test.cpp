// SPDX-License-Identifier: Apache-2.0
// Every option that another program's parser declares has one class in the tables.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "support/source_dir.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"
#include "tessera/interop/option_table.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;

/// The tables that a part of a program reads, in their order.
std::vector<std::string> tables_of(const std::string& program, const std::string& part) {
  const std::vector<std::string> trl = {
      "trl/script", "trl/model", "trl/common", "huggingface/trainer"};
  const auto with = [&](std::vector<std::string> first) {
    first.insert(first.end(), trl.begin(), trl.end());
    return first;
  };
  if (program == "megatron-lm") return {"megatron/lm"};
  if (program == "megatron-deepspeed") return {"megatron/deepspeed"};
  if (program == "deepspeed-examples") return {"deepspeed/examples"};
  if (program == "deepspeed-chat") {
    const std::string own = part.find("step1") != part.npos && part.ends_with("main.py") ? "step1"
                            : part.find("step2_dpo") != part.npos                        ? "dpo"
                            : part.find("step3") != part.npos                            ? "rlhf"
                            : part.ends_with("e2e_rlhf.py")                              ? "e2e"
                            : part.ends_with("prompt_eval.py") ? "prompt_eval"
                            : part.ends_with("chat.py") || part.ends_with("chatbot.py") ? "chat"
                                                                                        : "reward";
    return {"deepspeed/" + own, "train/chat", "train/flags"};
  }
  if (program == "tencentpretrain") {
    const auto has = [&](const char* word) { return part.find(word) != part.npos; };
    for (const char* refused : {"run_c3",
                                "run_chid",
                                "run_cmrc",
                                "run_dbqa",
                                "run_simcse",
                                "_cv",
                                "_grid",
                                "_mt",
                                "_prompt",
                                "_siamese",
                                "multi_label",
                                "image_classifier",
                                "speech2text",
                                "talk2face",
                                "run_lgb",

                                "text2text_infer"}) {
      if (has(refused)) return {"tencentpretrain/other"};
    }
    const std::string own = has("convert_")                          ? "convert"
                            : has("generate_")                       ? "generate"
                            : has("preprocess.py")                   ? "preprocess"
                            : has("pretrain.py")                     ? "pretrain"
                            : has("inference/") || has("infer_opts") ? "infer"
                                                                     : "finetune";
    return {"tencentpretrain/" + own, "tencentpretrain/common", "tencentpretrain/model"};
  }
  if (program == "transformers") return {"huggingface/seq2seq", "huggingface/trainer"};
  if (program == "axolotl") {
    if (part.ends_with("Dataset")) return {"axolotl/dataset"};
    if (part.starts_with("UserDefined") || part == "RoleBoundarySpec")
      return {"axolotl/dataset_type"};
    if (part == "FSDPConfig") return {"axolotl/fsdp"};
    if (part == "TRLConfig") return {"axolotl/trl"};
    return {"axolotl/train", "axolotl/others"};
  }
  if (program == "llama-factory" && part == "EvaluationArguments")
    return {"llamafactory/evaluation"};
  if (program == "llama-factory") return {"llamafactory/train"};
  if (part == "SFTConfig") return with({"trl/sft"});
  if (part == "DPOConfig") return with({"trl/dpo"});
  if (part == "KTOConfig") return with({"trl/kto"});
  if (part == "RewardConfig") return with({"trl/reward"});
  if (part == "GRPOConfig") return with({"trl/grpo", "trl/rollouts"});
  if (part == "RLOOConfig") return with({"trl/rloo", "trl/rollouts"});
  return with({});
}

struct Declared {
  std::string program, part, name, initial;
};

/// tests/interop/data/options/PROGRAM.tsv: a part of the program, an option, and its default.
std::vector<Declared> declared_options() {
  std::vector<Declared> out;
  const fs::path folder = test::source_dir() / "tests/interop/data/options";
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".tsv") continue;
    const std::string program = entry.path().stem().string();
    for (const std::string& line : text::split(files::read(entry.path()), '\n')) {
      const std::vector<std::string> cells = text::split(line, '\t');
      if (cells.size() == 3) out.push_back({program, cells[0], cells[1], cells[2]});
    }
  }
  return out;
}

const Option* find(const Declared& one) {
  for (const std::string& table : tables_of(one.program, one.part)) {
    if (const Option* const option = option_table(table).find(one.name)) return option;
  }
  return nullptr;
}

TEST(OptionTables, HaveAClassForEveryOptionOfEveryParser) {
  const std::vector<Declared> all = declared_options();
  ASSERT_GT(all.size(), 2000U);
  std::vector<std::string> missing;
  for (const Declared& one : all) {
    if (find(one) == nullptr)
      missing.push_back(fmt::format("{} {}: {}", one.program, one.part, one.name));
  }
  EXPECT_THAT(missing, testing::IsEmpty());
}

bool is_same_value(const std::string& one, std::string_view other) {
  if (text::lower(one) == text::lower(other)) return true;
  try {
    const json::Value a = json::parse(one, ""), b = json::parse(std::string(other), "");
    return a.is_number() && b.is_number() && a.as_double() == b.as_double();
  } catch (const Error&) {
    return false;
  }
}

// A default of a row is the one that the parser declares. A parser may compute one when it runs
// (null), and a list has another spelling.
TEST(OptionTables, HaveTheDefaultsOfTheParsers) {
  // "Keep all checkpoints" and "bf16 unless fp16" are null in the parsers.
  const std::set<std::string> computed = {"save_total_limit", "bf16"};
  std::vector<std::string> wrong;
  for (const Declared& one : declared_options()) {
    const Option* const option = find(one);
    if (option == nullptr || option->kind != OptionClass::Mapped || option->initial.empty())
      continue;
    if (computed.contains(one.name) || one.initial.find('[') != std::string::npos) continue;
    if (one.initial.empty()) continue;
    if (!is_same_value(one.initial, option->initial)) {
      wrong.push_back(fmt::format("{} {} {}: {} instead of {}",
                                  one.program,
                                  one.part,
                                  one.name,
                                  option->initial,
                                  one.initial));
    }
  }
  EXPECT_THAT(wrong, testing::IsEmpty());
}

TEST(OptionTables, AreReadWithoutErrors) {
  for (const std::string& name : option_tables())
    EXPECT_FALSE(option_table(name).options().empty()) << name;
}

// An option whose name no rule reads would be accepted and have no effect.
TEST(OptionTables, HaveNoNameThatNoRuleReads) {
  const std::set<std::string> known = {"@file",  // read as the file of settings before the rules
                                       "@settings_file",  // the same
                                       "@entry",  // read by its own name in an object of a file
                                       "@checkpointing",  // the same
                                       "@fsdp_reshard_after_forward",
                                       "@fsdp_version"};
  std::string rules;
  for (const auto& entry :
       fs::recursive_directory_iterator(tessera::test::source_dir() / "tessera/interop")) {
    const fs::path& path = entry.path();
    if (path.extension() == ".cpp" || path.extension() == ".h") rules += files::read(path);
  }
  std::vector<std::string> unread;
  for (const std::string& name : option_tables()) {
    for (const Option& option : option_table(name).options()) {
      const std::string key(option.key);
      if (!key.starts_with('@') || known.contains(key)) continue;
      if (rules.find('"' + key + '"') == std::string::npos)
        unread.push_back(fmt::format("{} {}: {}", name, option.names.front(), key));
    }
  }
  EXPECT_THAT(unread, testing::IsEmpty());
}

TEST(OptionTables, MayHaveBarsInADefault) {
  const Option* const option = option_table("deepspeed/step1").find("eot_token");
  ASSERT_NE(option, nullptr);
  EXPECT_EQ(option->initial, "<|endoftext|>");
  EXPECT_EQ(option->note, "answers end with the tokenizer's end of text");
}

TEST(OptionTables, RefuseARowOfAnotherForm) {
  int number = 0;
  const auto read = [&](std::string_view rows) {
    // Tables live as long as the program.
    static std::vector<std::string> names;
    names.reserve(100);
    names.push_back(fmt::format("test{}", ++number));
    add_option_tables(names.back(), rows);
    return option_table(names.back() + "/a").options().size();
  };
  EXPECT_EQ(read("[a]\nx, y | mapped number k | 1\nz | same none | | why\n"), 2U);
  EXPECT_THROW(read("x | mapped number k\n"), Error);
  EXPECT_THROW(read("[a]\nx | other number k\n"), Error);
  EXPECT_THROW(read("[a]\nx | mapped word k\n"), Error);
  EXPECT_THROW(read("[a]\nx | same none\n"), Error);
  EXPECT_THROW(read("[a]\nx | same none | | @unknown\n"), Error);
  EXPECT_THROW(read("[a]\nx | mapped number k\nx | mapped number l\n"), Error);
  EXPECT_THROW(read("[b]\nx | mapped number k\n"), Error);
}

TEST(OptionTables, FindNamesWithDashesAndUnderscores) {
  const OptionTable& table = option_table("huggingface/trainer");
  ASSERT_NE(table.find("--per-device-train-batch-size"), nullptr);
  EXPECT_EQ(table.find("per_device_train_batch_size"), table.find("--per-device-train-batch-size"));
  EXPECT_EQ(table.find("per_device"), nullptr);
}

}  // namespace
}  // namespace tessera::interop
