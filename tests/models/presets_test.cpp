// SPDX-License-Identifier: Apache-2.0
// Presets: the numbers of parameters and the values of the published models, and when a preset's
// vocabulary counts. Encoders are counted in encoders_test.cpp, GPT-2 in gpt2_test.cpp.
#include "tessera/models/presets.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/models/family.h"

namespace tessera::models {
namespace {

struct Published {
  const char* family;
  const char* preset;
  std::int64_t num_parameters;
};

// The numbers that the pages of the checkpoints give, all files together. Three models of Gemma 3
// also see images: their pages' 4,300,079,472, 12,187,325,040 and 27,432,406,640 contain
// 416,866,032 of the encoder of images and 1152 x hidden_size + 1152 that lead from it.
constexpr std::int64_t kImages = 416'866'032;
constexpr Published kPublished[] = {
    {"llama", "llama-7b", 6'738'415'616},
    {"llama", "llama-13b", 13'015'864'320},
    {"llama", "llama-30b", 32'528'943'616},
    {"llama", "llama-65b", 65'285'660'672},
    {"llama", "llama2-7b", 6'738'415'616},
    {"llama", "llama2-13b", 13'015'864'320},
    {"llama", "llama2-70b", 68'976'648'192},
    {"llama", "llama3-8b", 8'030'261'248},
    {"llama", "llama3-70b", 70'553'706'496},
    {"llama", "llama3.1-8b", 8'030'261'248},
    {"llama", "llama3.1-70b", 70'553'706'496},
    {"llama", "llama3.1-405b", 405'853'388'800},
    {"llama", "llama3.2-1b", 1'235'814'400},
    {"llama", "llama3.2-3b", 3'212'749'824},
    {"llama", "llama3.3-70b", 70'553'706'496},
    {"llama", "tinyllama-1.1b", 1'100'048'384},
    {"llama", "smollm2-135m", 134'515'008},
    {"llama", "smollm2-360m", 361'821'120},
    {"llama", "smollm2-1.7b", 1'711'376'384},
    {"llama", "yi-6b", 6'061'035'520},
    {"llama", "yi-9b", 8'829'407'232},
    {"llama", "yi-34b", 34'388'917'248},
    {"mistral", "mistral-7b", 7'241'732'096},
    {"mistral", "mistral-7b-v0.2", 7'241'732'096},
    {"mistral", "mistral-7b-v0.3", 7'248'023'552},
    {"mistral", "mistral-nemo-12b", 12'247'782'400},
    {"mistral", "mistral-small-24b", 23'572'403'200},
    {"qwen2", "qwen2-0.5b", 494'032'768},
    {"qwen2", "qwen2-1.5b", 1'543'714'304},
    {"qwen2", "qwen2-7b", 7'615'616'512},
    {"qwen2", "qwen2-72b", 72'706'203'648},
    {"qwen2", "qwen2.5-0.5b", 494'032'768},
    {"qwen2", "qwen2.5-1.5b", 1'543'714'304},
    {"qwen2", "qwen2.5-3b", 3'085'938'688},
    {"qwen2", "qwen2.5-7b", 7'615'616'512},
    {"qwen2", "qwen2.5-14b", 14'770'033'664},
    {"qwen2", "qwen2.5-32b", 32'763'876'352},
    {"qwen2", "qwen2.5-72b", 72'706'203'648},
    {"qwen3", "qwen3-0.6b", 596'049'920},
    {"qwen3", "qwen3-1.7b", 1'720'574'976},
    {"qwen3", "qwen3-4b", 4'022'468'096},
    {"qwen3", "qwen3-8b", 8'190'735'360},
    {"qwen3", "qwen3-14b", 14'768'307'200},
    {"qwen3", "qwen3-32b", 32'762'123'264},
    {"mixtral", "mixtral-8x7b", 46'702'792'704},
    {"mixtral", "mixtral-8x22b", 140'620'634'112},
    {"qwen2_moe", "qwen1.5-moe-a2.7b", 14'315'784'192},
    {"qwen2_moe", "qwen2-57b-a14b", 57'408'658'944},
    {"qwen3_moe", "qwen3-30b-a3b", 30'532'122'624},
    {"qwen3_moe", "qwen3-235b-a22b", 235'093'634'560},
    {"olmoe", "olmoe-1b-7b", 6'919'161'856},
    {"deepseek_v2", "deepseek-v2-lite", 15'706'484'224},
    {"deepseek_v2", "deepseek-v2", 235'741'434'880},
    {"deepseek_v3", "deepseek-v3", 671'026'419'200},
    {"gpt_oss", "gpt-oss-20b", 20'914'757'184},
    {"gpt_oss", "gpt-oss-120b", 116'829'156'672},
    {"phimoe", "phi-3.5-moe", 41'873'153'344},
    {"granitemoe", "granite-3.0-1b-a400m", 1'334'628'352},
    {"granitemoe", "granite-3.0-3b-a800m", 3'298'793'472},
    {"jetmoe", "jetmoe-8b", 8'522'237'952},
    {"llama4_text", "llama-4-scout-17b-16e", 107'769'861'120},
    {"llama4_text", "llama-4-maverick-17b-128e", 400'711'848'960},
    {"dbrx", "dbrx", 131'596'523'520},
    {"switch_transformers", "switch-base-8", 619'339'008},
    {"switch_transformers", "switch-base-16", 1'072'397'568},
    {"switch_transformers", "switch-base-32", 1'978'514'688},
    {"switch_transformers", "switch-base-64", 3'790'748'928},
    {"switch_transformers", "switch-base-128", 7'415'217'408},
    {"switch_transformers", "switch-base-256", 14'664'154'368},
    {"switch_transformers", "switch-large-128", 26'309'291'008},
    {"switch_transformers", "switch-c-2048", 1'571'308'972'448},
    {"phi3", "phi3-mini", 3'821'079'552},
    {"phi3", "phi3-medium", 13'960'238'080},
    {"phi3", "phi-4", 14'659'507'200},
    {"gemma", "gemma-2b", 2'506'172'416},
    {"gemma", "gemma-7b", 8'537'680'896},
    {"gemma2", "gemma2-2b", 2'614'341'888},
    {"gemma2", "gemma2-9b", 9'241'705'984},
    {"gemma2", "gemma2-27b", 27'227'128'320},
    {"gemma3_text", "gemma3-270m", 268'098'176},
    {"gemma3_text", "gemma3-1b", 999'885'952},
    {"olmo2", "olmo2-1b", 1'484'916'736},
    {"olmo2", "olmo2-7b", 7'298'617'344},
    {"olmo2", "olmo2-13b", 13'716'198'400},
    {"olmo2", "olmo2-32b", 32'234'279'936},
    {"smollm3", "smollm3-3b", 3'075'098'624},
    {"glm", "glm-4-9b", 9'399'951'360},
    {"glm4", "glm4-9b", 9'400'279'040},
    {"glm4", "glm4-32b", 32'566'081'536},
    {"opt", "opt-125m", 125'239'296},
    {"opt", "opt-350m", 331'196'416},
    {"opt", "opt-1.3b", 1'315'758'080},
    {"opt", "opt-2.7b", 2'651'596'800},
    {"opt", "opt-6.7b", 6'658'473'984},
    {"opt", "opt-13b", 12'853'473'280},
    {"opt", "opt-30b", 29'974'540'288},
    {"gpt_neox", "pythia-70m", 70'426'624},
    {"gpt_neox", "pythia-160m", 162'322'944},
    {"gpt_neox", "pythia-410m", 405'334'016},
    {"gpt_neox", "pythia-1b", 1'011'781'632},
    {"gpt_neox", "pythia-1.4b", 1'414'647'808},
    {"gpt_neox", "pythia-2.8b", 2'775'208'960},
    {"gpt_neox", "pythia-6.9b", 6'857'302'016},
    {"gpt_neox", "pythia-12b", 11'846'072'320},
    {"gpt_neox", "gpt-neox-20b", 20'554'567'680},
    {"bloom", "bloom-560m", 559'214'592},
    {"bloom", "bloom-1b1", 1'065'314'304},
    {"bloom", "bloom-1b7", 1'722'408'960},
    {"bloom", "bloom-3b", 3'002'557'440},
    {"bloom", "bloom-7b1", 7'069'016'064},
    {"bloom", "bloom-176b", 176'247'271'424},
    {"gemma3_text", "gemma3-4b", 4'300'079'472 - kImages - 1152 * 2561},
    {"gemma3_text", "gemma3-12b", 12'187'325'040 - kImages - 1152 * 3841},
    {"gemma3_text", "gemma3-27b", 27'432'406'640 - kImages - 1152 * 5377},
};

/// A section `model`, read as from a file and resolved.
Resolved resolved(const std::string& model, std::int64_t tokenizer_size) {
  ModelOptions options;
  config::Problems problems;
  config::Origins origins;
  config::read(json::parse(model, "config.json"), options, problems, origins);
  Resolved out = resolve(options, tokenizer_size, std::nullopt, problems, origins);
  problems.raise();
  return out;
}
std::string section(const std::string& family, const std::string& preset, const char* more = "") {
  return R"({"family": ")" + family + R"(", "preset": ")" + preset + "\"" + more + "}";
}
double number_of(const Resolved& model, const char* key) {
  return model.description.find(key)->as_double();
}

TEST(Presets, HaveThePublishedNumbersOfParameters) {
  for (const Published& published : kPublished) {
    EXPECT_EQ(resolved(section(published.family, published.preset), 256).num_parameters,
              published.num_parameters)
        << published.preset;
  }
}

TEST(Presets, ThatArePublishedAreCounted) {
  for (const std::string& family : families().names()) {
    const bool decoder = families().get(family).objective == "causal_lm";
    for (const Preset& preset : families().get(family).presets) {
      if (!decoder || preset.vocab_size == 0) continue;
      const bool counted = std::ranges::any_of(
          kPublished, [&](const Published& one) { return one.preset == preset.name; });
      // Their pages give no number, or one that counts something else.
      const bool rounded =
          preset.name == "opt-66b" || preset.name == "pythia-14m" || preset.name == "pythia-31m";
      EXPECT_NE(counted, rounded) << preset.name;
    }
  }
}

TEST(Presets, HaveTheValuesOfThePublishedModel) {
  const Resolved llama = resolved(section("llama", "llama3.2-1b"), 256);

  EXPECT_EQ(number_of(llama, "rope_theta"), 500000.0);
  EXPECT_EQ(number_of(llama, "rope_factor"), 32.0);
  EXPECT_EQ(llama.description.find("rope_scaling")->as_string(), "llama3");
  EXPECT_EQ(llama.max_positions, 131072);
  EXPECT_TRUE(llama.tied_head);
  EXPECT_EQ(number_of(resolved(section("qwen2", "qwen2-0.5b"), 256), "rms_norm_eps"), 1e-6);
  EXPECT_EQ(number_of(resolved(section("mistral", "mistral-7b"), 256), "sliding_window"), 4096);
  EXPECT_EQ(number_of(resolved(section("gemma2", "gemma2-27b"), 256), "query_scalar"), 144);
}

TEST(Presets, BelongToOneFamilyEach) {
  for (const std::string& family : families().names()) {
    for (const Preset& preset : families().get(family).presets)
      EXPECT_EQ(family_of_preset(preset.name), family) << preset.name;
  }
  std::vector<std::string> presets = all_presets();
  std::ranges::sort(presets);
  EXPECT_EQ(std::ranges::adjacent_find(presets), presets.end());
  EXPECT_EQ(family_of_preset("no-such-preset"), std::nullopt);
}

TEST(Presets, ChooseTheFamilyOfAConfiguration) {
  const auto spelled = [](const char* config) {
    json::Value out = json::parse(config, "config.json");
    spell_out_family(out);
    const json::Value* const family = out.find("model")->find("family");
    return family == nullptr ? std::string() : family->as_string();
  };

  EXPECT_EQ(spelled(R"({"model": {"preset": "llama2-7b"}})"), "llama");
  EXPECT_EQ(spelled(R"({"model": {"preset": "bert-base-uncased", "family": null}})"), "bert");
  EXPECT_EQ(spelled(R"({"model": {"preset": "lama2-7b"}})"), "llama");
  EXPECT_EQ(spelled(R"({"model": {"preset": "llama2-7b", "family": "gpt2"}})"), "gpt2");
  EXPECT_EQ(spelled(R"({"model": {"preset": "llama2-7b", "from": "folder"}})"), "");
  EXPECT_EQ(spelled(R"({"model": {"preset": "nothing like any of them"}})"), "");
}

TEST(Presets, GiveWayToKeysThatAreGiven) {
  const Resolved given = resolved(
      R"({"family": "llama", "rope_theta": 10000, "tie_embeddings": false, "preset": "llama3.2-1b"})",
      256);

  EXPECT_EQ(number_of(given, "rope_theta"), 10000.0);
  EXPECT_FALSE(given.tied_head);
  EXPECT_EQ(number_of(given, "rope_factor"), 32.0);
}

TEST(Presets, LeaveNothingBehindWhenAnotherIsChosen) {
  ModelOptions options("llama");

  options.choose_preset("llama3.2-1b");
  options.choose_preset("llama2-7b");

  ModelOptions fresh("llama");
  fresh.choose_preset("llama2-7b");
  EXPECT_TRUE(config::write(options) == config::write(fresh));
}

TEST(Presets, HaveTheirVocabularyUnlessTheTokenizerIsLarger) {
  const std::string preset = section("llama", "llama2-7b");

  EXPECT_EQ(resolved(preset, 0).vocab_size, 32000);
  EXPECT_EQ(resolved(preset, 257).vocab_size, 32000);
  EXPECT_EQ(resolved(preset, 32000).vocab_size, 32000);
  EXPECT_EQ(resolved(preset, 50257).vocab_size, 50304);
  EXPECT_EQ(resolved(section("llama", "llama2-7b", R"(, "vocab_size": 320)"), 257).vocab_size, 320);
  EXPECT_EQ(resolved(R"({"family": "llama"})", 257).vocab_size, 320);
}

TEST(Presets, AreNamedAsTheOriginOfTheirValues) {
  const Resolved model = resolved(section("llama", "llama3-8b"), 257);

  EXPECT_EQ(model.derivations.at("rope_theta"), "preset llama3-8b");
  EXPECT_EQ(model.derivations.at("vocab_size"), "preset llama3-8b");
}

}  // namespace
}  // namespace tessera::models
