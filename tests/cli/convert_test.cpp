// SPDX-License-Identifier: Apache-2.0
// tessera convert: round trips, and what it rejects.
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cli/convert_support.h"
#include "cli/program.h"
#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/engine/open_model.h"
#include "tessera/interop/weights.h"
#include "tessera/models/family.h"
#include "tessera/models/model_source.h"
#include "tessera/text/tokenizer.h"

namespace tessera::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Convert : public Conversions {};

TEST_F(Convert, ARunBecomesAFolderWithTheSameWeightsAndModel) {
  const Outcome o = convert({run_folder(), path("hf")});

  ASSERT_EQ(o.code, 0) << o.err;
  expect_weights(path("hf"));
  const json::Value config = json::parse_strict(files::read(path("hf/config.json")), "config");
  config::Problems problems;
  const models::Resolved again =
      models::resolve(models::options_from_hf(config), 256, std::nullopt, problems, {});
  EXPECT_EQ(again.description, resolved.description) << again.description.dump(2);
  EXPECT_TRUE(fs::exists(path("hf/generation_config.json")));
}

TEST_F(Convert, TheFolderOfARunsCheckpointsStandsForTheNewest) {
  const Outcome o = convert({run_folder() / "checkpoints", path("hf")});

  ASSERT_EQ(o.code, 0) << o.err;
  expect_weights(path("hf"));
  EXPECT_EQ(models::open_model_source(run_folder() / "checkpoints").folder.filename(),
            "step-00000003");
}

TEST_F(Convert, MakesExpertsOfTheMlps) {
  const Outcome o = convert({run_folder(), path("sparse"), "--upcycle", "3", "--top-k", "2"});

  ASSERT_EQ(o.code, 0) << o.err;
  const models::ModelSource source = models::open_model_source(path("sparse"));
  config::Problems problems;
  const models::Resolved sparse =
      models::resolve(source.model, 256, std::nullopt, problems, {}, source.objective);
  EXPECT_EQ(sparse.inactive_parameters, 2 * (8 * 32 + 32 + 32 * 8 + 8)) << "one expert a layer";
  const models::WeightSource weights = models::source_weights(source, sparse);
  int stacked = 0;
  for (const auto& info : nn::parameters_of(sparse.model)) {
    std::vector<float> values(static_cast<std::size_t>(info->numel()));
    weights(*info, 0, info->numel(), values.data());
    if (!info->stacked()) continue;
    ++stacked;
    std::string dense = info->name;
    const bool input = dense.find("gate_up_proj") != std::string::npos;
    dense.replace(dense.find("experts."),
                  dense.find_last_of('.') - dense.find("experts."),
                  input ? "c_fc" : "c_proj");
    const std::vector<float>& of_mlp = this->weights.at(dense);
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], of_mlp[i % of_mlp.size()]) << info->name << " " << i;
  }
  EXPECT_EQ(stacked, 2 * 4);
  EXPECT_THAT(convert({path("sparse"), path("more"), "--upcycle", "3"}).err,
              HasSubstr("has experts already"));
  EXPECT_THAT(convert({run_folder(), path("more"), "--upcycle", "1"}).err,
              HasSubstr("cannot use 2 of 1 experts"));
  EXPECT_THAT(convert({run_folder(), path("more"), "--top-k", "1"}).err, HasSubstr("--upcycle"));
  EXPECT_THAT(convert({run_folder(), path("more"), "--upcycle", "3", "--to", "hf"}).err,
              HasSubstr("--to is hf"));
}

TEST_F(Convert, TheByteTokenizerGoesAlongAsByteLevelBpeWithoutMerges) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);

  const json::Value written =
      json::parse_strict(files::read(path("hf/tokenizer.json")), "tokenizer.json");
  const json::Value& vocab = *written.find("model")->find("vocab");

  // GPT-2 writes a printable byte as itself and a space as U+0120. Byte 0 ends a text.
  EXPECT_EQ(vocab.members().size(), 256U);
  EXPECT_EQ(vocab.find("A")->as_integer(), 65);
  EXPECT_EQ(vocab.find("\u0120")->as_integer(), 32);
  EXPECT_EQ(vocab.find(std::string(1, '\0'))->as_integer(), 0);
  EXPECT_EQ(vocab.find("\u0100"), nullptr);
  EXPECT_EQ(vocab.find("\u010a")->as_integer(), 10);
  EXPECT_EQ(vocab.find("\u00ff")->as_integer(), 255);
  EXPECT_EQ(vocab.find("\u0143")->as_integer(), 173);
  EXPECT_TRUE(written.find("model")->find("merges")->items().empty());
}

TEST_F(Convert, AFolderWithTheByteTokenizerIsReadAsSuch) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);

  const text::TokenizerPtr tokenizer = text::tokenizer_from_folder(path("hf"));

  std::vector<std::int32_t> ids;
  tokenizer->encode("a \u0100\n", ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{97, 32, 0xC4, 0x80, 10}));
  EXPECT_EQ(tokenizer->fingerprint(), "byte");
}

TEST_F(Convert, TheByteTokenizerNamesTheTokenThatEndsATextForTransformers) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);

  const json::Value config = json::parse_strict(files::read(path("hf/tokenizer_config.json")), "");
  const json::Value file = json::parse_strict(files::read(path("hf/tokenizer.json")), "");
  const json::Value& added = file.find("added_tokens")->items().at(0);

  // The byte itself, which id 0 stands for.
  const std::string zero(1, '\0');
  EXPECT_EQ(config.find("eos_token")->as_string(), zero);
  EXPECT_EQ(added.find("content")->as_string(), zero);
  EXPECT_EQ(added.find("id")->as_integer(), 0);
  EXPECT_EQ(text::tokenizer_from_folder(path("hf"))->end_of_text(), 0);
}

// transformers otherwise has the published model's, 128004 of SmolLM 3, and refuses the model.
TEST_F(Convert, AFolderSaysThatNoTokenIsPadding) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);

  const json::Value config = json::parse_strict(files::read(path("hf/config.json")), "");

  const json::Value* const pad = config.find("pad_token_id");
  ASSERT_NE(pad, nullptr);
  EXPECT_TRUE(pad->is_null());
}

TEST_F(Convert, AFoldersPositionsAreFixedAndTheFixSaysSo) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);
  files::write_atomic(path("a.txt"), std::string(4000, 'a'));
  const auto train = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"train", "--model", path("hf"), "--data", path("a.txt")};
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), {"--set", "run.dir=" + path("new"), "--dry-run"});
    return run_program(words);
  };

  const Outcome longer = train({"--set", "data.sequence_length=64"});
  const Outcome both =
      train({"--set", "data.sequence_length=64", "--set", "model.max_positions=64"});
  const Outcome fixed = train({"--set", "data.sequence_length=16"});

  EXPECT_THAT(longer.err,
              AllOf(HasSubstr("set data.sequence_length to 16 or less"),
                    Not(HasSubstr("model.max_positions"))));
  EXPECT_THAT(both.err, HasSubstr("leave it out, and set data.sequence_length to 16 or less"));
  EXPECT_EQ(fixed.code, 0) << fixed.err;
}

TEST_F(Convert, TheModelOfAnotherProgramIsLeftToIt) {
  std::vector<float> memory(6, 1.0F);
  std::vector<checkpoint::PieceBytes> pieces = {{"table.weight",
                                                 DType::F32,
                                                 {2, 3},
                                                 {mesh::whole({2, 3}), 0, 6},
                                                 std::as_writable_bytes(std::span(memory))}};
  checkpoint::Meta meta;
  meta.step = 1;
  meta.config = json::parse(R"({"model": {"table.weight": [2, 3]}, "tokenizer": {}})", "own");
  meta.extra = json::Value::object();
  checkpoint::save(fs::path(path("own")) / "checkpoints", meta, pieces, checkpoint::Ranks());

  const std::vector<std::vector<std::string>> commands = {
      {"eval", path("own")},
      {"generate", path("own"), "--prompt", "a"},
      {"convert", path("own"), path("hf")}};
  for (const std::vector<std::string>& words : commands) {
    const Outcome o = run_program(words);

    EXPECT_EQ(o.code, 2) << words[0];
    EXPECT_THAT(o.err, AllOf(HasSubstr("table.weight"), HasSubstr("engine->evaluate()")));
  }
}

TEST_F(Convert, ThereAndBackIsTheSameToTheBit) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);
  ASSERT_EQ(convert({path("hf"), path("bin"), "--to", "torch"}).code, 0);
  ASSERT_EQ(convert({path("bin"), path("back"), "--shard-size", "2kB"}).code, 0);

  EXPECT_TRUE(fs::exists(path("bin/pytorch_model.bin")));
  EXPECT_TRUE(fs::exists(path("back/model.safetensors.index.json")));
  EXPECT_FALSE(digest("hf").empty());
  EXPECT_EQ(digest("hf"), digest("back"));
  EXPECT_EQ(files::read(path("hf/config.json")), files::read(path("back/config.json")));
  expect_weights(path("bin"));
  expect_weights(path("back"));
}

TEST_F(Convert, ATorchFileHoldsTheTiedHeadToo) {
  const Outcome o = convert({run_folder(), path("model.pt")});

  ASSERT_EQ(o.code, 0) << o.err;
  std::map<std::string, interop::Weight> held;
  for (const auto& weight : interop::open_weight_file(path("model.pt")))
    held.emplace(weight.name, weight);
  EXPECT_TRUE(held.at("lm_head.weight").same_storage(held.at("transformer.wte.weight")));
}

TEST_F(Convert, NarrowTypesAreRoundedOnceAndSaidInTheConfig) {
  ASSERT_EQ(convert({run_folder(), path("hf"), "--dtype", "bf16"}).code, 0);

  for (const auto& weight : interop::open_weights(path("hf"))) {
    EXPECT_EQ(weight.dtype, DType::BF16) << weight.name;
    if (weight.name != "transformer.wpe.weight") continue;
    for (std::int64_t i = 0; i < weight.numel(); ++i) {
      std::uint16_t bits = 0;
      weight.copy(i, i + 1, reinterpret_cast<std::byte*>(&bits));
      EXPECT_EQ(bits, to_bf16(weights.at("wpe.weight")[static_cast<std::size_t>(i)]));
    }
  }
  EXPECT_THAT(files::read(path("hf/config.json")), HasSubstr("\"torch_dtype\": \"bfloat16\""));
}

TEST_F(Convert, FoldersOfAnyModelKeepTheirTensors) {
  const fs::path golden = tessera::test::source_dir() / "tests/golden/reference/models";
  for (const char* name : {"gpt2_bin", "llama_bf16_sharded", "opt_bin_fp16"}) {
    ASSERT_EQ(convert({golden / name, path("there"), "--to", "torch", "--overwrite"}).code, 0);
    ASSERT_EQ(convert({path("there"), path("back"), "--overwrite"}).code, 0);
    ASSERT_EQ(convert({path("back"), path("again"), "--to", "torch", "--overwrite"}).code, 0);

    EXPECT_EQ(digest("there"), run_program({"inspect", golden / name, "--digest"}).out) << name;
    EXPECT_EQ(digest("there"), digest("again")) << name;
  }
}

TEST_F(Convert, KeepsExistingFilesByDefault) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);
  const std::string before = digest("hf");

  const Outcome again = convert({run_folder(), path("hf"), "--dtype", "fp16"});

  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("--overwrite"));
  EXPECT_EQ(digest("hf"), before);
  EXPECT_EQ(convert({run_folder(), path("hf"), "--dtype", "fp16", "--overwrite"}).code, 0);
  EXPECT_NE(digest("hf"), before);
}

TEST_F(Convert, FoldersOfSomethingElseAreNeverReplaced) {
  fs::create_directories(path("home/docs"));

  EXPECT_EQ(convert({run_folder(), path("home"), "--overwrite"}).code, 2);
  EXPECT_EQ(convert({run_folder(), run_folder(), "--overwrite"}).code, 2);
  EXPECT_TRUE(fs::exists(path("home/docs")));
  EXPECT_TRUE(fs::exists(run_folder() / "checkpoints"));
}

TEST_F(Convert, AFailureLeavesNothingBehind) {
  const fs::path shard = run_folder() / "checkpoints/step-00000003/rank-00000.safetensors";
  std::string bytes = files::read(shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  files::write_atomic(shard, bytes);

  const Outcome o = convert({run_folder(), path("hf")});

  EXPECT_EQ(o.code, 4);
  EXPECT_THAT(o.err, HasSubstr("rank-00000.safetensors"));
  for (const auto& entry : fs::directory_iterator(dir.path()))
    EXPECT_EQ(entry.path(), run_folder());
}

TEST_F(Convert, RemovesWhatAConversionThatWasKilledLeft) {
  const fs::path left = path(".tmp-hf-4194305");  // larger than any process number
  fs::create_directories(left);
  files::write_atomic(left / "model.safetensors", "half");

  EXPECT_EQ(convert({run_folder(), path("hf")}).code, 0);

  EXPECT_FALSE(fs::exists(left));
}

fs::path interop(const std::string& name) {
  return tessera::test::source_dir() / "tests/golden/reference/interop" / name;
}

TEST_F(Convert, DeepSpeedsTrainingsSurviveARoundTripBitForBit) {
  for (const char* name : {"deepspeed_z1_bf16", "deepspeed_z2_bf16", "deepspeed_z3_fp32"}) {
    SCOPED_TRACE(name);
    const std::string ours = path(std::string("ours-") + name),
                      back = path(std::string("ds-") + name);

    const Outcome there = convert({interop(name), ours, "--to", "tessera"});
    const Outcome again = convert({ours, back, "--to", "deepspeed-universal"});

    ASSERT_EQ(there.code, 0) << there.err;
    ASSERT_EQ(again.code, 0) << again.err;
    const std::string digest = run_program({"inspect", interop(name), "--digest"}).out;
    EXPECT_THAT(digest, HasSubstr("optimizer.exp_avg_sq.transformer.h.2.mlp.c_fc.weight F32"));
    EXPECT_EQ(run_program({"inspect", back, "--digest"}).out, digest);
    EXPECT_THAT(run_program({"inspect", interop(name)}).out, HasSubstr("DeepSpeed"));
  }
}

TEST_F(Convert, ATrainingLoopsPairSurvivesARoundTripBitForBit) {
  const fs::path loop = interop("torch_tutorial");
  ASSERT_EQ(convert({loop, path("ours"), "--to", "tessera"}).code, 0);

  const Outcome o = convert({path("ours"), path("model_000005.pth")});

  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(fs::exists(path("optimizer_000005.pth")));
  EXPECT_EQ(run_program({"inspect", path("model_000005.pth"), "--digest"}).out,
            run_program({"inspect", loop, "--digest"}).out);
  EXPECT_EQ(convert({path("ours"), path("model_000005.pth")}).code, 2);
  EXPECT_EQ(convert({path("ours"), path("model_000005.pth"), "--overwrite"}).code, 0);
}

TEST_F(Convert, AFolderWhoseWeightsDoNotFitItsConfigIsRefusedWithBothPlaces) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);
  const json::Value config = json::parse_strict(files::read(path("hf/config.json")), "config.json");
  const auto outcome_with = [&](const char* key, const json::Value& value) {
    json::Value other = config;
    other[key] = value;
    files::write_atomic(path("hf/config.json"), other.dump());
    return convert({path("hf"), path("again")});
  };
  const std::int64_t layers = *config.find("n_layer")->as_integer(),
                     vocab = *config.find("vocab_size")->as_integer();

  const Outcome missing = outcome_with("n_layer", json::Value::integer(layers + 1));
  const Outcome unexpected = outcome_with("n_layer", json::Value::integer(layers - 1));
  const Outcome misshapen = outcome_with("vocab_size", json::Value::integer(vocab + 1));

  EXPECT_EQ(missing.code, 4);
  EXPECT_THAT(missing.err,
              AllOf(HasSubstr("missing"), HasSubstr("attn"), HasSubstr("hf/config.json")));
  EXPECT_THAT(unexpected.err, AllOf(HasSubstr("unexpected"), HasSubstr("attn")));
  EXPECT_THAT(misshapen.err,
              AllOf(HasSubstr("of another shape"),
                    HasSubstr("wte"),
                    HasSubstr("it has a vocab_size of " + std::to_string(vocab))));
  EXPECT_FALSE(fs::exists(path("again")));
}

// Its heads are unknown here, so its tensors are copied as they are.
TEST_F(Convert, AFolderOfAModelThatIsNotBuiltIsCopied) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);
  json::Value config = json::parse_strict(files::read(path("hf/config.json")), "config.json");
  config["architectures"] =
      json::Value::array({json::Value::string("GPT2DoubleHeadsForSomething")});
  config["n_layer"] = json::Value::integer(99);
  files::write_atomic(path("hf/config.json"), config.dump());

  EXPECT_EQ(convert({path("hf"), path("again")}).code, 0);
}

TEST_F(Convert, OtherFilesOfAFolderAreKeptThroughOurCheckpoint) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);
  json::Value config = json::parse_strict(files::read(path("hf/config.json")), "config.json");
  config["eos_token_id"] = json::Value::integer(7);
  files::write_atomic(path("hf/config.json"), config.dump());
  files::write_atomic(path("hf/generation_config.json"), R"({"do_sample": true, "top_k": 5})");
  files::write_atomic(path("hf/special_tokens_map.json"), R"({"eos_token": "<end>"})");

  const Outcome there = convert({path("hf"), path("ours"), "--to", "tessera"});
  const std::string weights = digest("hf");
  fs::remove_all(path("hf"));
  const Outcome back = convert({path("ours"), path("again")});

  ASSERT_EQ(there.code, 0) << there.err;
  ASSERT_EQ(back.code, 0) << back.err;
  const json::Value again =
      json::parse_strict(files::read(path("again/config.json")), "config.json");
  EXPECT_EQ(again.find("eos_token_id")->as_integer(), 7);
  EXPECT_EQ(files::read(path("again/generation_config.json")),
            R"({"do_sample": true, "top_k": 5})");
  EXPECT_EQ(files::read(path("again/special_tokens_map.json")), R"({"eos_token": "<end>"})");
  EXPECT_EQ(run_program({"inspect", path("again"), "--digest"}).out, weights);
}

TEST_F(Convert, WeightsOfDeepSpeedBecomeAHuggingFaceFolder) {
  const fs::path source = interop("deepspeed_z3_bf16");

  const Outcome o = convert({source, path("hf"), "--dtype", "fp32"});

  ASSERT_EQ(o.code, 0) << o.err;
  const std::string masters = run_program({"inspect", source, "--digest"}).out;
  EXPECT_EQ(digest("hf"), masters.substr(0, masters.find("optimizer.")));
  EXPECT_TRUE(fs::exists(path("hf/config.json")));
}

TEST_F(Convert, ALoneFileIsASourceToo) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);

  ASSERT_EQ(convert({path("hf/model.safetensors"), path("model.bin")}).code, 0);
  ASSERT_EQ(convert({path("hf"), path("again.bin")}).code, 0);

  EXPECT_EQ(digest("model.bin"), digest("again.bin"));
}

TEST_F(Convert, AFileIsAModelIfAConfigJsonIsNextToIt) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);
  ASSERT_EQ(convert({path("hf"), path("torch"), "--to", "torch"}).code, 0);
  fs::copy_file(path("torch/pytorch_model.bin"), path("torch/lone.pth"));
  const auto expect_ours = [&](const models::WeightSource& source) {
    for (const auto& [name, expected] : weights) {
      std::vector<float> got(expected.size());
      source(*infos.at(name), 0, infos.at(name)->numel(), got.data());
      EXPECT_EQ(got, expected) << name;
    }
  };

  for (const char* name : {"hf/model.safetensors", "torch/pytorch_model.bin", "torch/lone.pth"}) {
    SCOPED_TRACE(name);
    const models::ModelSource start = models::open_model_source(path(name));
    const auto read = engine::find_model(path(name));

    EXPECT_EQ(start.model->num_layers, 2);
    expect_ours(models::source_weights(start, resolved));
    EXPECT_EQ(read->tokenizer->name(), "byte");
    expect_ours(read->weights);
  }
}

TEST_F(Convert, AHuggingFaceFolderBecomesACheckpointOfOurs) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);

  const Outcome o = convert({path("hf"), path("ours"), "--to", "tessera"});

  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(digest("ours"), digest("run"));
  EXPECT_EQ(run_program({"checkpoint", "verify", path("ours")}).code, 0);
  ASSERT_EQ(convert({path("ours"), path("back")}).code, 0);
  EXPECT_EQ(digest("back"), digest("hf"));
}

TEST_F(Convert, NamesOfFilesOfOtherFormatsAreNotTakenForFolders) {
  for (const std::string name : {"x.tflite", "model.H5", "weights.tar"}) {
    const Outcome o = convert({run_folder(), path(name)});
    EXPECT_EQ(o.code, 2) << name;
    EXPECT_THAT(o.err, ::testing::AllOf(HasSubstr("has the name of a"), HasSubstr("name a folder")))
        << name;
    EXPECT_FALSE(fs::exists(path(name))) << name;
  }
  EXPECT_EQ(convert({run_folder(), path("llama-3.2")}).code, 0);
}

TEST_F(Convert, BadWordsAreNamed) {
  const auto refused = [&](const std::vector<std::string>& words, int code, const char* reason) {
    const Outcome o = convert(words);
    EXPECT_EQ(o.code, code) << reason;
    EXPECT_THAT(o.err, HasSubstr(reason));
    EXPECT_FALSE(fs::exists(path("x")));
  };
  refused({path("absent"), path("x")}, 2, "there is no folder");
  refused({run_folder(), path("x"), "--to", "tessera"}, 2, "is tessera's already");
  refused({run_folder(), path("x"), "--to", "deepspeed-universal"}, 2, "has no exp_avg");
  refused({dir.path(), path("x")}, 4, "no config.json");
  refused({run_folder(), path("no/x")}, 2, "does not exist");
  refused({run_folder(), path("x"), "--dtype", "fp8"}, 2, "--dtype \"fp8\"");
  refused({run_folder(), path("x"), "--to", "tflite"}, 2, "--to \"tflite\"");
  refused({run_folder(), path("x.pt"), "--to", "hf"}, 2, "--to hf writes a folder");
  refused({run_folder(), path("x.safetensors")}, 2, "it will contain model.safetensors");
  EXPECT_FALSE(fs::exists(path("x.safetensors")));
  for (const char* size : {"0", "2 parsecs", "-1GB", "18446744073709551615GB", "GB"})
    refused({run_folder(), path("x"), std::string("--shard-size=") + size}, 2, "is not a size");
}

}  // namespace
}  // namespace tessera::cli
