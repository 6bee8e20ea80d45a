// SPDX-License-Identifier: Apache-2.0
// Tokenizer files that tessera convert writes next to the weights: copied unchanged, or as
// published.
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/convert_support.h"
#include "cli/program.h"
#include "golden/golden.h"
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/interop/model_export.h"
#include "tessera/models/model_source.h"
#include "tessera/text/tokenizer.h"

namespace tessera::cli {
namespace {

/// Returns name and content of all files of a folder except those of the model.
std::map<std::string, std::string> beside_the_model(const fs::path& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name != "config.json" && !name.ends_with(".safetensors"))
      out.emplace(name, files::read(entry.path()));
  }
  return out;
}

std::string sha256(const std::string& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      ::popen(("sha256sum '" + path + "'").c_str(), "r"), ::pclose);
  std::array<char, 65> out{};
  if (!pipe || std::fread(out.data(), 1, 64, pipe.get()) != 64) return "";
  return out.data();
}

/// Checks that every recorded text gives its recorded ids.
void expect_golden_ids(const text::Tokenizer& tokenizer) {
  int compared = 0;
  for (const json::Value& record :
       golden::read_jsonl(golden::folder() / "tokenizers/gpt2/cases.jsonl")) {
    const std::string text = golden::at(record, "text").as_string();
    std::vector<std::int32_t> ids, expected;
    for (const json::Value& id : golden::at(record, "ids").items())
      expected.push_back(static_cast<std::int32_t>(id.as_integer().value()));
    tokenizer.encode(text, ids);
    EXPECT_EQ(ids, expected) << text;
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

class ConvertedTokenizers : public Conversions {};

TEST_F(ConvertedTokenizers, OfOthersSurviveARoundTripThroughOurFormat) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);
  // tessera does not use any of them; some are not even JSON.
  const std::map<std::string, std::string> theirs = {
      {"generation_config.json", "{\"top_k\":5 }\n"},
      {"tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}"},
      {"tokenizer_config.json", "{ \"tokenizer_class\": \"Other\" }"},
      {"vocab.txt", "[PAD]\r\n[UNK]\r\n"},
      {"tokenizer.model", std::string("\x0a\x0e\x00\xff", 4)},
      {"special_tokens_map.json", "{\"eos_token\": \"\\u003cend>\"}"},
      {"added_tokens.json", "{\"<new>\": 256}"}};
  for (const auto& [name, content] : theirs)
    files::write_atomic(path("hf/" + name), content);

  const Outcome there = convert({path("hf"), path("ours"), "--to", "tessera"});
  fs::remove_all(path("hf"));
  const Outcome back = convert({path("ours"), path("again")});

  ASSERT_EQ(there.code, 0) << there.err;
  ASSERT_EQ(back.code, 0) << back.err;
  EXPECT_EQ(beside_the_model(path("again")), theirs);
}

TEST_F(ConvertedTokenizers, AreNotMadeUpForAFolderWithoutOne) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);
  for (const auto& [name, content] : beside_the_model(path("hf")))
    fs::remove(path("hf/" + name));

  ASSERT_EQ(convert({path("hf"), path("ours"), "--to", "tessera"}).code, 0);
  ASSERT_EQ(convert({path("ours"), path("again")}).code, 0);

  EXPECT_TRUE(beside_the_model(path("again")).empty());
}

class ConvertedGpt2 : public Conversions {
 protected:
  ConvertedGpt2() : Conversions({.type = "gpt2"}) {}
};

TEST_F(ConvertedGpt2, HasThePublishedFilesAndIds) {
  const Outcome o = convert({run_folder(), path("hf")});

  ASSERT_EQ(o.code, 0) << o.err;
  // Source: tiktoken 0.7, tiktoken_ext/openai_public.py, gpt2(): hashes of vocab.bpe and
  // encoder.json, which Hugging Face's folders call merges.txt and vocab.json.
  EXPECT_EQ(sha256(path("hf/merges.txt")),
            "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5");
  EXPECT_EQ(sha256(path("hf/vocab.json")),
            "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783");
  expect_golden_ids(*text::tokenizer_from_folder(path("hf")));
}

TEST_F(ConvertedGpt2, HasATokenizerJsonOfTheSameVocabularyAndMerges) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);
  const json::Value vocab = json::parse_strict(files::read(path("hf/vocab.json")), "vocab.json");
  const json::Value whole =
      json::parse_strict(files::read(path("hf/tokenizer.json")), "tokenizer.json");
  const json::Value& model = *whole.find("model");

  EXPECT_EQ(model.find("vocab")->members().size(), 50257U);
  for (const char* token : {"!", "\u0120the", "<|endoftext|>"}) {
    EXPECT_EQ(model.find("vocab")->find(token)->as_integer(), vocab.find(token)->as_integer())
        << token;
  }
  const auto& merges = model.find("merges")->items();
  ASSERT_EQ(merges.size(), 50000U);
  EXPECT_EQ(merges.front().as_string(), "\u0120 t");
  EXPECT_EQ(merges.back().as_string(), "\u0120g azed");
  const json::Value& end = whole.find("added_tokens")->items().at(0);
  EXPECT_EQ(end.find("id")->as_integer(), 50256);
  EXPECT_EQ(end.find("content")->as_string(), "<|endoftext|>");
  // On its own it gives the same tokenizer.
  fs::remove(path("hf/vocab.json"));
  fs::remove(path("hf/merges.txt"));
  expect_golden_ids(*text::tokenizer_from_folder(path("hf")));
}

/// A folder as newer programs write it: without vocab.json and merges.txt.
class ConvertedTokenizerJson : public ConvertedGpt2 {
 protected:
  ConvertedTokenizerJson() {
    EXPECT_EQ(convert({run_folder(), path("hf")}).code, 0);
    fs::remove(path("hf/vocab.json"));
    fs::remove(path("hf/merges.txt"));
  }
};

TEST_F(ConvertedTokenizerJson, IsTheTokenizerOfTheCheckpoint) {
  const Outcome there = convert({path("hf"), path("ours"), "--to", "tessera"});
  fs::remove_all(path("hf"));

  ASSERT_EQ(there.code, 0) << there.err;
  expect_golden_ids(*models::source_tokenizer(models::open_model_source(path("ours"))));
}

TEST_F(ConvertedTokenizerJson, GoesAlongWhenTheCheckpointIsMerged) {
  ASSERT_EQ(convert({path("hf"), path("ours"), "--to", "tessera"}).code, 0);
  const auto beside = interop::files_beside(path("hf"));

  ASSERT_EQ(run_program({"checkpoint", "merge", path("ours"), path("one")}).code, 0);
  fs::remove_all(path("hf"));
  fs::remove_all(path("ours"));

  EXPECT_FALSE(beside.empty());
  EXPECT_EQ(interop::files_beside(path("one")), beside);
  expect_golden_ids(*models::source_tokenizer(models::open_model_source(path("one"))));
}

TEST_F(ConvertedTokenizerJson, IsTheTokenizerOfARunThatContinuesFromIt) {
  files::write_atomic(path("text.txt"), std::string(4000, 'x'));
  files::write_atomic(path("c.json"),
                      R"({"model": {"from": ")" + path("hf") + R"("}, "data": {"train": ")" +
                          path("text.txt") + R"(", "sequence_length": 8},
                          "train_batch_size": 2, "trainer": {"max_steps": 1}, "run": {"dir": ")" +
                          path("tuned") + R"("}})");
  const Outcome trained = run_program({"train", path("c.json")});
  ASSERT_EQ(trained.code, 0) << trained.err;

  expect_golden_ids(*models::source_tokenizer(models::open_model_source(path("tuned"))));
  const Outcome back = convert({path("tuned"), path("again")});
  ASSERT_EQ(back.code, 0) << back.err;
  EXPECT_FALSE(fs::exists(path("again/vocab.json")));
  expect_golden_ids(*text::tokenizer_from_folder(path("again")));
}

TEST_F(ConvertedGpt2, SurvivesARoundTripThroughOurFormat) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);
  files::write_atomic(path("hf/tokenizer_config.json"), "{\"model_max_length\": 16}");
  files::write_atomic(path("hf/special_tokens_map.json"), "{\"eos_token\":\"<|endoftext|>\"}");
  const auto theirs = beside_the_model(path("hf"));

  ASSERT_EQ(convert({path("hf"), path("ours"), "--to", "tessera"}).code, 0);
  ASSERT_EQ(convert({path("ours"), path("again")}).code, 0);

  EXPECT_EQ(theirs.count("vocab.json") + theirs.count("merges.txt"), 2U);
  EXPECT_EQ(beside_the_model(path("again")), theirs);
}

}  // namespace
}  // namespace tessera::cli
