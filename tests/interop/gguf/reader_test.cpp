// SPDX-License-Identifier: Apache-2.0
// labels: slow
// GGUF files: blocks, tensors and configurations equal those that the format's own package wrote
// (data/make_gguf.py: gguf 0.19.0), and files that tessera writes can be read back.
#include "tessera/interop/gguf/reader.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "interop/foreign_support.h"
#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/gguf/tokenizer.h"
#include "tessera/interop/gguf/writer.h"
#include "tessera/text/tokenizer.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using test::values_of;

fs::path data(const std::string& name) {
  return tessera::test::source_dir() / "tests/interop/data" / name;
}

template <class T>
std::vector<T> numbers_in(const std::string& bytes) {
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> out(values.size());
  std::memcpy(out.data(), values.data(), values.size() * sizeof(float));
  return out;
}

TEST(GgufBlocks, OfEveryTypeDecodeToTheBitsOfTheFormatsOwnPackage) {
  const GgufFile file(data("gguf_blocks.gguf"));
  const auto expected = numbers_in<float>(files::read(data("gguf_blocks.f32")));
  ASSERT_EQ(file.tensors().size() * 512, expected.size());
  std::mt19937 random(3);
  for (std::size_t t = 0; t < file.tensors().size(); ++t) {
    const GgufTensor& tensor = file.tensors()[t];
    SCOPED_TRACE(tensor.name);
    const std::vector<float> theirs(expected.begin() + static_cast<std::ptrdiff_t>(t * 512),
                                    expected.begin() + static_cast<std::ptrdiff_t>(t * 512 + 512));

    std::vector<float> ours(512);
    decode_blocks(tensor.type, tensor.data.data(), 0, 512, ours.data());

    EXPECT_EQ(bits_of(ours), bits_of(theirs));
    for (int i = 0; i < 50; ++i) {
      const std::int64_t begin = random() % 512,
                         end = begin + random() % static_cast<unsigned>(513 - begin);
      std::vector<float> part(static_cast<std::size_t>(end - begin));
      decode_blocks(tensor.type, tensor.data.data(), begin, end, part.data());
      EXPECT_EQ(bits_of(part),
                bits_of(std::vector<float>(theirs.begin() + begin, theirs.begin() + end)));
    }
  }
}

TEST(GgufBlocks, OfQ8AreEncodedToTheBytesOfTheFormatsOwnPackage) {
  const auto numbers = numbers_in<float>(files::read(data("gguf_q8_0.f32")));
  const std::string expected = files::read(data("gguf_q8_0.bin"));

  std::string bytes(expected.size(), '\0');
  EXPECT_TRUE(encode_q8_0(numbers.data(),
                          static_cast<std::int64_t>(numbers.size()),
                          reinterpret_cast<std::byte*>(bytes.data())));

  EXPECT_EQ(bytes, expected);
}

/// Tensors by name, read in small pieces.
std::map<std::string, std::vector<float>> tensors_of(const Foreign& opened) {
  std::map<std::string, std::vector<float>> out;
  for (const auto& tensor : opened.weights)
    out.emplace(tensor.name, values_of(tensor));
  return out;
}

std::vector<float> counted(std::size_t count, int k) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = 1000.0F * static_cast<float>(k) + static_cast<float>(i);
  return out;
}

std::string beside(const Foreign& opened, const std::string& name) {
  for (const auto& [file, content] : opened.beside) {
    if (file == name) return content;
  }
  return "";
}

TEST(Gguf, ARotaryDecoderHasHuggingFacesNamesAndOrderOfRows) {
  const Foreign opened = open_foreign(data("gguf_rotary.gguf")).value();
  const auto tensors = tensors_of(opened);

  ASSERT_EQ(tensors.size(), 20U);
  EXPECT_EQ(tensors.at("model.embed_tokens.weight"), counted(259 * 8, 0));
  EXPECT_EQ(tensors.at("model.norm.weight"), counted(8, 1));
  for (int layer = 0; layer < 2; ++layer) {
    const std::string in = "model.layers." + std::to_string(layer) + ".";
    const int k = 2 + 9 * layer;
    EXPECT_EQ(tensors.at(in + "self_attn.q_proj.weight"), counted(64 * 8, k));
    EXPECT_EQ(tensors.at(in + "self_attn.k_proj.weight"), counted(32 * 8, k + 1));
    EXPECT_EQ(tensors.at(in + "self_attn.v_proj.weight"), counted(32 * 8, k + 2));
    EXPECT_EQ(tensors.at(in + "self_attn.o_proj.weight"), counted(8 * 64, k + 3));
    EXPECT_EQ(tensors.at(in + "input_layernorm.weight"), counted(8, k + 4));
    EXPECT_EQ(tensors.at(in + "post_attention_layernorm.weight"), counted(8, k + 5));
    EXPECT_EQ(tensors.at(in + "mlp.gate_proj.weight"), counted(12 * 8, k + 6));
    EXPECT_EQ(tensors.at(in + "mlp.up_proj.weight"), counted(12 * 8, k + 7));
    EXPECT_EQ(tensors.at(in + "mlp.down_proj.weight"), counted(8 * 12, k + 8));
  }
}

TEST(Gguf, ARotaryDecodersKeysBecomeAConfigWithTheRuleOfItsRotaryFactors) {
  const Foreign opened = open_foreign(data("gguf_rotary.gguf")).value();

  const json::Value expected = json::parse_strict(
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2,
          "max_position_embeddings": 64, "hidden_size": 8, "intermediate_size": 12,
          "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "rms_norm_eps": 1e-5,
          "rope_theta": 500000.0, "hidden_act": "silu", "attention_bias": false, "mlp_bias": false,
          "vocab_size": 259, "torch_dtype": "float32", "tie_word_embeddings": true,
          "bos_token_id": 257, "eos_token_id": 257,
          "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
                           "high_freq_factor": 4, "original_max_position_embeddings": 8192}})",
      "expected");
  for (const auto& [key, value] : expected.members()) {
    const json::Value* found = opened.model_config.find(key);
    ASSERT_NE(found, nullptr) << key;
    EXPECT_TRUE(*found == value) << key << " is " << found->dump();
  }
  EXPECT_EQ(opened.model_config.members().size(), expected.members().size());
}

TEST(Gguf, AGptHasHuggingFacesNamesAndTransposedMatrices) {
  const Foreign opened = open_foreign(data("gguf_gpt.gguf")).value();
  const auto tensors = tensors_of(opened);

  ASSERT_EQ(tensors.size(), 16U);
  EXPECT_EQ(tensors.at("transformer.wpe.weight"), counted(16 * 8, 1));
  EXPECT_EQ(tensors.at("transformer.ln_f.bias"), counted(8, 3));
  EXPECT_EQ(tensors.at("transformer.h.0.attn.c_attn.weight"), counted(8 * 24, 8));
  EXPECT_EQ(tensors.at("transformer.h.0.attn.c_attn.bias"), counted(24, 9));
  EXPECT_EQ(tensors.at("transformer.h.0.attn.c_proj.weight"), counted(8 * 8, 10));
  EXPECT_EQ(tensors.at("transformer.h.0.mlp.c_fc.weight"), counted(8 * 32, 12));
  EXPECT_EQ(tensors.at("transformer.h.0.mlp.c_proj.weight"), counted(32 * 8, 14));
  EXPECT_EQ(opened.model_config.find("n_inner")->as_integer(), 32);
  EXPECT_EQ(opened.model_config.find("activation_function")->as_string(), "gelu_new");
}

TEST(Gguf, TheTokenizerIsWrittenOutAsFilesOfHuggingFace) {
  const Foreign opened = open_foreign(data("gguf_rotary.gguf")).value();
  const json::Value tokenizer =
      json::parse_strict(beside(opened, "tokenizer.json"), "tokenizer.json");
  const json::Value words =
      json::parse_strict(beside(opened, "tokenizer_config.json"), "tokenizer_config.json");

  const json::Value* vocabulary = at_path(tokenizer, "model.vocab");
  ASSERT_NE(vocabulary, nullptr);
  EXPECT_EQ(vocabulary->members().size(), 258U);  // the row of padding is not a token
  EXPECT_EQ(vocabulary->find("he")->as_integer(), 256);
  EXPECT_EQ(at_path(tokenizer, "model.merges.0")->as_string(), "h e");
  EXPECT_EQ(at_path(tokenizer, "added_tokens.0.content")->as_string(), "<|endoftext|>");
  EXPECT_EQ(at_path(tokenizer, "pre_tokenizer.pretokenizers.0.type")->as_string(), "Digits");
  EXPECT_EQ(words.find("chat_template")->as_string(), "{{ messages }}");
  EXPECT_EQ(words.find("eos_token")->as_string(), "<|endoftext|>");
  EXPECT_EQ(beside(opened, "generation_config.json").find("257") != std::string::npos, true);
}

TEST(Gguf, ASentencepieceTokenizersMergesFollowItsScores) {
  const GgufFile file(data("gguf_spm.gguf"));
  const auto written = gguf_tokenizer_files(file, 16);
  ASSERT_EQ(written.front().first, "tokenizer.json");
  const json::Value tokenizer = json::parse_strict(written.front().second, "tokenizer.json");

  // In the order of transformers' SentencePieceExtractor: by score, then by the left part's length.
  EXPECT_EQ(
      at_path(tokenizer, "model.merges")->dump(),
      json::parse_strict(R"([["▁","a"],["a","b"],["▁a","b"],["▁","ab"]])", "expected").dump());
  EXPECT_TRUE(at_path(tokenizer, "model.byte_fallback")->as_bool());
  EXPECT_EQ(at_path(tokenizer, "normalizer.normalizers.0.type")->as_string(), "Prepend");
  EXPECT_EQ(at_path(tokenizer, "post_processor.single.0.SpecialToken.id")->as_string(), "<s>");
}

class GgufFiles : public test::ForeignCheckpoints {
 protected:
  /// Writes the model of a file of the data as GGUF again.
  fs::path again(const std::string& name, std::optional<GgmlType> type) {
    const Foreign opened = open_foreign(data(name)).value();
    FilesBeside files = opened.beside;
    files.emplace_back("config.json", opened.model_config.dump());
    const GgufPlan plan = plan_gguf(opened.weights, files, type);
    std::uint64_t told = 0;
    fs::remove(path("again.gguf"));
    write_gguf(path("again.gguf"), plan, [&](std::uint64_t bytes) { told += bytes; });
    EXPECT_EQ(told, plan.bytes);
    EXPECT_EQ(fs::file_size(path("again.gguf")), plan.header.size() + plan.bytes);
    return path("again.gguf");
  }
  fs::path changed(const std::string& content) {
    files::write_atomic(path("x.gguf"), content);
    return path("x.gguf");
  }
};

TEST_F(GgufFiles, WrittenAgainHaveTheKeysAndTensorsThatTheyCameWith) {
  for (const char* name : {"gguf_rotary.gguf", "gguf_gpt.gguf"}) {
    SCOPED_TRACE(name);
    const GgufFile before(data(name)), after(again(name, std::nullopt));

    for (const auto& [key, value] : before.values()) {
      const GgufValue* found = after.find(key);
      ASSERT_NE(found, nullptr) << key;
      EXPECT_EQ(found->type, value.type) << key;
      EXPECT_EQ(found->strings, value.strings) << key;
      EXPECT_TRUE(std::ranges::equal(found->data, value.data)) << key;
    }
    ASSERT_EQ(after.tensors().size(), before.tensors().size());
    for (const GgufTensor& tensor : before.tensors()) {
      const GgufTensor* found = after.tensor(tensor.name);
      ASSERT_NE(found, nullptr) << tensor.name;
      EXPECT_EQ(found->shape, tensor.shape) << tensor.name;
      if (tensor.name == "rope_freqs.weight") continue;  // it is computed from the rule
      EXPECT_TRUE(std::ranges::equal(found->data, tensor.data)) << tensor.name;
    }
  }
}

TEST_F(GgufFiles, OfOtherTypesKeepVectorsAndWhatHasNoWholeBlocks) {
  const GgufFile half(again("gguf_gpt.gguf", GgmlType::BF16));
  EXPECT_EQ(half.tensor("blk.0.ffn_up.weight")->type, GgmlType::BF16);
  EXPECT_EQ(half.tensor("blk.0.ffn_up.bias")->type, GgmlType::F32);
  EXPECT_EQ(half.tensor("position_embd.weight")->type, GgmlType::F32);
  EXPECT_EQ(half.integer("general.file_type"), 32);

  const GgufFile bytes(again("gguf_gpt.gguf", GgmlType::Q8_0));
  EXPECT_EQ(bytes.tensor("blk.0.ffn_down.weight")->type, GgmlType::Q8_0);
  EXPECT_EQ(bytes.tensor("blk.0.ffn_up.weight")->type, GgmlType::F16);  // rows of 8
  EXPECT_EQ(bytes.integer("general.file_type"), 7);
}

TEST_F(GgufFiles, WhatATypeHasNoRoomForIsRefused) {
  const Foreign opened = open_foreign(data("gguf_gpt.gguf")).value();
  FilesBeside files = {{"config.json", opened.model_config.dump()}};
  auto weights = opened.weights;
  for (auto& tensor : weights) {
    tensor.read = [](std::int64_t begin, std::int64_t end, std::byte* out) {
      const std::vector<float> large(static_cast<std::size_t>(end - begin), 1e6F);
      std::memcpy(out, large.data(), large.size() * sizeof(float));
    };
  }

  const Error error = test::error_of(
      [&] { write_gguf(path("large.gguf"), plan_gguf(weights, files, GgmlType::F16)); });

  EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
  EXPECT_THAT(error.text(), testing::HasSubstr("bf16"));
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

TEST_F(GgufFiles, WithFalseHeadersAreRefusedWithTheReason) {
  const std::string good = files::read(data("gguf_rotary.gguf"));
  const auto number = [](std::uint64_t value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };

  refused(changed("GGUG" + good.substr(4)), "not a GGUF file");
  refused(changed(replaced(good, std::string("GGUF\3\0\0\0", 8), std::string("GGUF\1\0\0\0", 8))),
          "version 1");
  refused(changed(replaced(good, std::string("GGUF\3\0\0\0", 8), std::string("GGUF\0\0\0\3", 8))),
          "big endian");
  refused(changed(good.substr(0, 8) + number(std::uint64_t{1} << 62) + good.substr(16)), "claims");
  refused(changed(good.substr(0, 16) + number(~std::uint64_t{0}) + good.substr(24)), "claims");
  refused(changed(replaced(good, "llama.block_count", "llama.block_counu")), "block_count");
  refused(changed(replaced(good, "blk.1.attn_q.weight", "blk.0.attn_q.weight")), "twice");
  refused(changed(replaced(good, "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id")),
          "twice");
  refused(changed(replaced(good, "blk.1.attn_q.weight", "blk.1.attn_z.weight")), "not known");
  refused(changed(replaced(good, "llama.vocab_size", "llama.vocab_sizz")), "vocab_sizz");
  refused(changed(good.substr(0, good.size() - 64)), "tensor");
}

// The bytes of a value, which follow its key and its type.
std::string with_value(const std::string& good, const std::string& key, const std::string& value) {
  const std::size_t at = good.find(key);
  EXPECT_NE(at, std::string::npos) << key;
  std::string out = good;
  return out.replace(at + key.size() + sizeof(std::uint32_t), value.size(), value);
}

TEST_F(GgufFiles, WithNumbersThatNoModelHasAreRefused) {
  const std::string good = files::read(data("gguf_rotary.gguf"));
  const auto real = [](float value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  const auto whole = [](std::uint32_t value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  struct Row {
    const char* key;
    std::string value;
    const char* reason;
  };
  for (const Row& row : {Row{"llama.rope.freq_base", real(nan), "no finite number"},
                         {"llama.rope.freq_base", real(infinity), "no finite number"},
                         {"llama.attention.layer_norm_rms_epsilon", real(nan), "no finite number"},
                         {"llama.attention.layer_norm_rms_epsilon", real(-infinity), "no finite"},
                         {"llama.vocab_size", whole(0), "vocab_size is 0"},
                         {"llama.vocab_size", whole(~0U), "vocab_size is 4294967295"}}) {
    SCOPED_TRACE(row.key);
    refused(changed(with_value(good, row.key, row.value)), row.reason);
  }
}

// A file with one key and no tensor.
TEST_F(GgufFiles, WithAlignmentsThatTheFormatDoesNotHaveAreRefused) {
  const auto file = [](std::uint32_t alignment) {
    const auto raw = [](auto value) {
      return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
    };
    const std::string key = "general.alignment";
    return "GGUF" + raw(std::uint32_t{3}) + raw(std::uint64_t{0}) + raw(std::uint64_t{1}) +
           raw(std::uint64_t{key.size()}) + key + raw(static_cast<std::uint32_t>(GgufType::U32)) +
           raw(alignment);
  };
  for (const std::uint32_t alignment : {0U, 1U, 2U, 4U, 7U, 24U, 1U << 21, ~0U}) {
    const Error error = test::error_of([&] { const GgufFile opened(changed(file(alignment))); });
    EXPECT_EQ(error.kind(), Error::Kind::Format) << alignment;
    EXPECT_THAT(error.text(), testing::HasSubstr("alignment")) << alignment;
  }
  for (const std::uint32_t alignment : {8U, 32U, 64U})
    EXPECT_NO_THROW(const GgufFile opened(changed(file(alignment)))) << alignment;
}

TEST_F(GgufFiles, CutAnywhereOrWithBitsFlippedAreReadOrRefused) {
  for (const char* name : {"gguf_rotary.gguf", "gguf_spm.gguf", "gguf_blocks.gguf"}) {
    const std::string good = files::read(data(name));
    std::mt19937 random(5);
    for (int i = 0; i < 150; ++i) {
      std::string bad = good;
      if (i % 3 == 0) bad.resize(random() % good.size());
      for (unsigned flips = i % 3 == 0 ? 0 : 1 + random() % 4; flips > 0; --flips)
        bad[random() % std::min<std::size_t>(bad.size(), 2000)] ^=
            static_cast<char>(1U << random() % 8);
      try {
        const auto opened = open_foreign(changed(bad));
        for (const auto& tensor : opened->weights)
          (void)values_of(tensor);
      } catch (const Error& error) {
        EXPECT_NE(error.kind(), Error::Kind::Bug) << error.text();
      }
    }
  }
}

// Whatever rule a model has, the file that is written of it computes the same when it is read.
TEST_F(GgufFiles, KeepEveryRotaryRule) {
  const Foreign opened = open_foreign(data("gguf_rotary.gguf")).value();
  const std::int64_t channels = opened.model_config.find("head_dim")->as_integer().value();
  for (const double theta : {10.0, 10'000.0, 500'000.0, 1e9}) {
    for (const double factor : {1.0, 1.5, 8.0, 40.0}) {
      for (const double low : {0.5, 1.0, 3.0}) {
        for (const std::int64_t original : {16, 100, 8192, 1'000'000}) {
          json::Value rule = json::Value::object(
              {{"rope_type", json::Value::string("llama3")},
               {"factor", json::Value::number(factor)},
               {"low_freq_factor", json::Value::number(low)},
               {"high_freq_factor", json::Value::number(low + 1.5)},
               {"original_max_position_embeddings", json::Value::integer(original)}});
          json::Value config = opened.model_config;
          config["rope_scaling"] = rule;
          config["rope_theta"] = json::Value::number(theta);
          SCOPED_TRACE(config.dump());
          fs::remove(path("rule.gguf"));
          write_gguf(path("rule.gguf"),
                     plan_gguf(opened.weights, {{"config.json", config.dump()}}, {}));

          const json::Value again = open_foreign(path("rule.gguf")).value().model_config;

          const json::Value* const read = again.find("rope_scaling");
          const std::vector<float> expected = rotary_factors(rule, theta, channels),
                                   plain(expected.size(), 1.0F);
          EXPECT_NEAR(again.find("rope_theta")->as_double(), theta, theta * 1e-6);
          EXPECT_TRUE(same_factors(
              read == nullptr || read->is_null() ? plain : rotary_factors(*read, theta, channels),
              expected));
        }
      }
    }
  }
}

// Each byte is a token, so that no split changes the tokens.
TEST_F(GgufFiles, KeepTheByteTokenizer) {
  const FilesBeside files = {{"tokenizer.json", text::byte_tokenizer_json()},
                             {"tokenizer_config.json", R"({"eos_token": "\u0000"})"}};

  const auto written = gguf_tokenizer_of(files, 300);

  ASSERT_TRUE(written.has_value());
  EXPECT_EQ(written->tokenizer, "gpt2");
  EXPECT_EQ(written->pre, "gpt-2");
  EXPECT_TRUE(written->merges.empty());
  EXPECT_EQ(written->tokens.at(0), std::string(1, '\0'));
  EXPECT_EQ(written->tokens.at('A'), "A");
  EXPECT_EQ(written->tokens.at(' '), "\u0120");
}

TEST(GgufRotary, FactorsOfOtherNumbersAreRecognisedAndOthersRefused) {
  const json::Value rule = json::parse_strict(
      R"({"rope_type": "llama3", "factor": 32, "low_freq_factor": 1, "high_freq_factor": 8,
          "original_max_position_embeddings": 4096})",
      "rule");
  std::vector<float> factors = rotary_factors(rule, 500000, 128);
  EXPECT_EQ(factors.front(), 1);
  EXPECT_EQ(factors.back(), 32);

  EXPECT_EQ(rotary_scaling_of(factors, 500000, "x").dump(), rule.dump());
  EXPECT_TRUE(rotary_scaling_of(std::vector<float>(64, 1.0F), 500000, "x").is_null());
  factors[40] *= 1.5F;
  EXPECT_EQ(test::error_of([&] { rotary_scaling_of(factors, 500000, "x"); }).kind(),
            Error::Kind::Unsupported);
}

}  // namespace
}  // namespace tessera::interop
