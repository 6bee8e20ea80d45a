// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/weights.h"
#include "tessera/interop/weights_of.h"
#include "tessera/models/family.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using namespace models;  // NOLINT(google-build-using-namespace)

json::Value hf_config(const std::string& more = "") {
  return json::parse_strict("{\"model_type\": \"gpt2\"" + (more.empty() ? "" : ", " + more) + "}",
                            "config.json");
}

/// A key of the options; null where it has no value.
json::Value value_of(ModelOptions options, const std::string& key) {
  const json::Value all = config::write(options);
  const json::Value* found = all.find(key);
  return found == nullptr ? json::Value() : *found;
}
std::int64_t integer_of(const ModelOptions& options, const std::string& key) {
  return value_of(options, key).as_integer().value();
}
double number_of(const ModelOptions& options, const std::string& key) {
  return value_of(options, key).as_double();
}

ModelOptions options_of(const std::string& text) {
  ModelOptions out("gpt2");
  config::Problems problems;
  config::Origins origins;
  config::read(json::parse(text, "test"), out, problems, origins);
  problems.raise();
  return out;
}

WeightSource source_of(const fs::path& path, const Resolved& resolved) {
  return weights_from_hf(path, families().get("gpt2"), resolved);
}

std::string error_of(const std::function<void()>& fn, Error::Kind kind) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.text();
  }
  ADD_FAILURE() << "expected an error";
  return "";
}

TEST(Gpt2HfConfig, HasTheLibrarysDefaultsForAbsentKeys) {
  const ModelOptions options = options_from_hf(hf_config());

  EXPECT_EQ(integer_of(options, "num_layers"), 12);
  EXPECT_EQ(integer_of(options, "hidden_size"), 768);
  EXPECT_EQ(integer_of(options, "num_heads"), 12);
  EXPECT_EQ(integer_of(options, "vocab_size"), 50257);
  EXPECT_EQ(integer_of(options, "max_positions"), 1024);
  EXPECT_EQ(integer_of(options, "ffn_hidden_size"), 3072);
  EXPECT_EQ(number_of(options, "attention_dropout"), 0.1);
  EXPECT_EQ(value_of(options, "activation").as_string(), "gelu_tanh");
  EXPECT_TRUE(value_of(options, "tie_embeddings").as_bool());
}

TEST(Gpt2HfConfig, HonoursWhatItSays) {
  const ModelOptions options = options_from_hf(hf_config(
      R"("n_embd": 48, "n_inner": 100, "activation_function": "relu", "layer_norm_epsilon": 1e-6, "embd_pdrop": 0.2,
                   "attn_pdrop": 0.3, "resid_pdrop": 0.4, "tie_word_embeddings": false, "initializer_range": 0.01,
                   "reorder_and_upcast_attn": true, "summary_type": "cls_index", "n_ctx": 1024)"));

  EXPECT_EQ(integer_of(options, "ffn_hidden_size"), 100);
  EXPECT_EQ(value_of(options, "activation").as_string(), "relu");
  EXPECT_EQ(number_of(options, "layer_norm_eps"), 1e-6);
  EXPECT_EQ(number_of(options, "embedding_dropout"), 0.2);
  EXPECT_EQ(number_of(options, "attention_dropout"), 0.3);
  EXPECT_EQ(number_of(options, "residual_dropout"), 0.4);
  EXPECT_FALSE(value_of(options, "tie_embeddings").as_bool());
  EXPECT_EQ(number_of(options, "init_std"), 0.01);
}

TEST(Gpt2HfConfig, RefusesOtherMathematicsByName) {
  const std::map<std::string, std::string> cases = {{"activation_function", "\"tanh\""},
                                                    {"add_cross_attention", "true"},
                                                    {"pruned_heads", "{\"0\": [1]}"}};
  for (const auto& [key, value] : cases) {
    const std::string text = error_of(
        [&] { options_from_hf(hf_config("\"" + key + "\": " + value)); }, Error::Kind::Unsupported);

    EXPECT_NE(text.find(key), std::string::npos) << text;
    EXPECT_NE(text.find("config.json:1:"), std::string::npos) << text;
  }
}

TEST(Gpt2HfConfig, RefusesNumbersThatCannotBe) {
  for (const char* bad : {"\"n_layer\": 0",
                          "\"n_layer\": 1.5",
                          "\"n_embd\": 1e30",
                          "\"n_head\": \"12\"",
                          "\"embd_pdrop\": 1.0"}) {
    error_of([&] { options_from_hf(hf_config(bad)); }, Error::Kind::Format);
  }
}

TEST(HfFamily, IsNamedByTheModelType) {
  EXPECT_EQ(family_of_hf(hf_config()), "gpt2");
  const std::string text =
      error_of([] { family_of_hf(json::parse_strict("{\"model_type\": \"gpt\"}", "config.json")); },
               Error::Kind::Unsupported);
  EXPECT_NE(text.find("gpt2"), std::string::npos);
}

TEST(HfFamily, IsNamedInTheFixIfTheFileDoesNotSayIt) {
  for (const auto& [architecture, family] : {std::pair("BertForMaskedLM", "bert"),
                                             {"GPT2LMHeadModel", "gpt2"},
                                             {"GPTNeoXForCausalLM", "gpt_neox"},
                                             {"XLMRobertaModel", "xlm-roberta"},
                                             {"Qwen3ForCausalLM", "qwen3"},
                                             {"MT5ForConditionalGeneration", "mt5"}}) {
    const std::string config = fmt::format("{{\"architectures\": [\"{}\"]}}", architecture);
    const std::string text = error_of(
        [&] { family_of_hf(json::parse_strict(config, "config.json")); }, Error::Kind::Format);
    EXPECT_NE(text.find(fmt::format("add \"model_type\": \"{}\"", family)), std::string::npos)
        << text;
  }
  const std::string text =
      error_of([] { family_of_hf(json::parse_strict("{}", "config.json")); }, Error::Kind::Format);
  EXPECT_NE(text.find("one of"), std::string::npos) << text;
}

/// A folder with a model of 1 layer, 4 channels, 2 heads, 6 channels in its MLP, 5 tokens, 3
/// positions; element i of tensor number n is 1000 n + i.
class HfFolder {
 public:
  HfFolder() {
    add("wte.weight", {5, 4});
    add("wpe.weight", {3, 4});
    for (const char* norm : {"h.0.ln_1", "h.0.ln_2", "ln_f"}) {
      add(std::string(norm) + ".weight", {4});
      add(std::string(norm) + ".bias", {4});
    }
    add("h.0.attn.c_attn.weight", {4, 12});
    add("h.0.attn.c_attn.bias", {12});
    add("h.0.attn.c_proj.weight", {4, 4});
    add("h.0.attn.c_proj.bias", {4});
    add("h.0.mlp.c_fc.weight", {4, 6});
    add("h.0.mlp.c_fc.bias", {6});
    add("h.0.mlp.c_proj.weight", {6, 4});
    add("h.0.mlp.c_proj.bias", {4});
  }
  void add(const std::string& name, const Shape& shape) {
    std::int64_t numel = 1;
    for (const std::int64_t size : shape)
      numel *= size;
    tensors[name] =
        (at::arange(numel, at::kFloat) + 1000.0 * static_cast<double>(tensors.size())).view(shape);
  }
  /// Writes a file with the tensors that `keep` wants.
  void write(const std::string& file,
             const std::string& prefix,
             const std::function<bool(const std::string&)>& keep,
             at::ScalarType type = at::kFloat) {
    std::vector<checkpoint::TensorBytes> list;
    std::vector<at::Tensor> alive;
    for (const auto& [name, tensor] : tensors) {
      if (!keep(name)) continue;
      alive.push_back(tensor.to(type).contiguous());
      const DType dtype = type == at::kFloat      ? DType::F32
                          : type == at::kBFloat16 ? DType::BF16
                          : type == at::kHalf     ? DType::F16
                                                  : DType::F64;
      list.push_back(
          {prefix + name,
           dtype,
           tensor.sizes().vec(),
           {static_cast<const std::byte*>(alive.back().data_ptr()), alive.back().nbytes()}});
    }
    checkpoint::write_safetensors(dir.path() / file, std::move(list), {});
  }
  void write_whole(const std::string& prefix = "transformer.") {
    fs::remove(dir.path() / "model.safetensors");
    write("model.safetensors", prefix, [](const std::string&) { return true; });
  }

  files::TempDir dir;
  std::map<std::string, at::Tensor> tensors;
};

Resolved tiny_model(bool tie = true, std::int64_t ffn = 6) {
  json::Value sizes = json::parse(R"({"num_layers": 1, "hidden_size": 4, "num_heads": 2,
                                      "vocab_size": 5, "max_positions": 3})",
                                  "test");
  sizes["ffn_hidden_size"] = json::Value::integer(ffn);
  sizes["tie_embeddings"] = json::Value::boolean(tie);
  config::Problems problems;
  Resolved resolved =
      resolve(options_of(sizes.dump()), 5, std::nullopt, problems, config::Origins());
  problems.raise();
  return resolved;
}

std::map<std::string, std::shared_ptr<const ParamInfo>> infos_of(const Resolved& resolved) {
  std::map<std::string, std::shared_ptr<const ParamInfo>> out;
  for (const auto& spec : resolved.model.blocks) {
    nn::Params params(spec.name);
    const auto block = spec.make();
    block->declare(params);
    for (const auto& param : params.list())
      out[param->info().name] = param->shared_info();
  }
  return out;
}

void expect_all_loaded(const HfFolder& folder, const Resolved& resolved) {
  const WeightSource source = source_of(folder.dir.path(), resolved);
  for (const auto& [name, info] : infos_of(resolved)) {
    at::Tensor expected = folder.tensors.at(name);
    const std::vector<std::int64_t> matrix = info->matrix_shape;
    // Conv1D stores its matrices as [in, out].
    if (matrix.size() == 2 && name.find("h.0.") == 0) expected = expected.t();
    expected = expected.reshape({-1});
    // Every range, so that a shard may start and end anywhere.
    for (std::int64_t begin = 0; begin < info->numel(); ++begin) {
      for (std::int64_t end = begin; end <= info->numel(); end += 3) {
        at::Tensor out = at::zeros({end - begin});
        source(*info, begin, end, out.data_ptr<float>());
        ASSERT_TRUE(at::equal(out, expected.slice(0, begin, end)))
            << name << " " << begin << " " << end;
      }
    }
  }
}

TEST(Gpt2HfWeights, LoadWithAndWithoutPrefix) {
  for (const char* prefix : {"transformer.", ""}) {
    HfFolder folder;
    folder.write_whole(prefix);

    expect_all_loaded(folder, tiny_model());
  }
}

TEST(Gpt2HfWeights, OfATiedModelMayStoreTheHeadOnlyAsTheTable) {
  HfFolder folder;
  folder.tensors["lm_head.weight"] = folder.tensors.at("wte.weight").clone();
  folder.write_whole("");
  expect_all_loaded(folder, tiny_model());

  folder.tensors.at("lm_head.weight")[4][3] += 1;
  folder.write_whole("");
  const std::string text =
      error_of([&] { source_of(folder.dir.path(), tiny_model()); }, Error::Kind::Format);
  EXPECT_NE(text.find("lm_head.weight differs from wte.weight"), std::string::npos) << text;
  EXPECT_NE(text.find("tie_word_embeddings"), std::string::npos) << text;
  expect_all_loaded(folder, tiny_model(/*tie=*/false));
}

// Whichever head a file has, an embedding is a hidden state before it.
TEST(WeightsOf, AModelWithoutAHeadTakesNoneOfAFile) {
  json::Value sizes = json::parse(R"({"num_layers": 1, "hidden_size": 4, "num_heads": 2,
      "vocab_size": 5, "max_positions": 3, "ffn_hidden_size": 6, "tie_embeddings": false})",
                                  "test");
  config::Problems problems;
  const Resolved model =
      resolve(options_of(sizes.dump()), 5, std::nullopt, problems, {}, {"embedding"});
  problems.raise();
  HfFolder folder;
  folder.write_whole();
  expect_all_loaded(folder, model);
  for (const char* head : {"lm_head.weight", "score.weight", "v_head.summary.weight"})
    folder.add(head, {2, 4});
  folder.write_whole("");

  expect_all_loaded(folder, model);
  HfFolder other;
  other.add("h.0.extra.weight", {2});
  other.write_whole();

  EXPECT_NE(error_of([&] { source_of(other.dir.path(), model); }, Error::Kind::Format)
                .find("h.0.extra.weight"),
            std::string::npos);
}

TEST(WeightsOf, ATiedModelTakeAHeadOnlyWhereItIsTheTable) {
  HfFolder folder;
  folder.tensors["lm_head.weight"] = folder.tensors.at("wte.weight").clone();
  const auto open = [&] {
    folder.write_whole("");
    std::vector<checkpoint::StreamedTensor> tensors;
    for (const interop::Weight& weight : interop::open_weights(folder.dir.path()))
      tensors.push_back(interop::stream(weight, weight.name));
    interop::weights_of(tensors, families().get("gpt2"), tiny_model(), "the file");
  };
  EXPECT_NO_THROW(open());

  folder.tensors.at("lm_head.weight")[0][0] += 1;
  EXPECT_NE(error_of(open, Error::Kind::Format).find("tie_word_embeddings"), std::string::npos);
}

TEST(Gpt2HfWeights, AreFoundInADictOfATrainingLoops) {
  for (const char* prefix :
       {"state_dict.transformer.", "model.transformer.", "module.", "model_state_dict.module."}) {
    HfFolder folder;
    folder.write_whole(prefix);

    expect_all_loaded(folder, tiny_model());
  }
}

TEST(Gpt2HfWeights, AreFoundBehindWrappers) {
  for (const char* prefix : {"_orig_mod.transformer.",
                             "_orig_mod.",
                             "module._orig_mod.transformer.",
                             "model._orig_mod.module.transformer."}) {
    HfFolder folder;
    folder.write_whole(prefix);

    expect_all_loaded(folder, tiny_model());
  }
}

TEST(StateDicts, AreFoundAmongOtherValuesOfACheckpoint) {
  const auto named = [](const std::string& name) {
    interop::Weight weight;
    weight.name = name;
    return weight;
  };
  const auto names = [](const std::vector<interop::Weight>& weights) {
    std::vector<std::string> out;
    for (const auto& weight : weights)
      out.push_back(weight.name);
    return out;
  };

  EXPECT_EQ(names(interop::state_dict_of({named("model.module.transformer.wte.weight"),
                                          named("model.module.lm_head.weight"),
                                          named("optimizer.state.0.exp_avg")})),
            (std::vector<std::string>{"transformer.wte.weight", "lm_head.weight"}));
  EXPECT_EQ(names(interop::state_dict_of({named("wte.weight"), named("state_dict.wte.weight")})),
            (std::vector<std::string>{"wte.weight", "state_dict.wte.weight"}));
  // A Llama's own names.
  EXPECT_EQ(
      names(interop::state_dict_of({named("model.embed_tokens.weight"), named("lm_head.weight")})),
      (std::vector<std::string>{"model.embed_tokens.weight", "lm_head.weight"}));
}

TEST(Gpt2HfWeights, PutQueriesKeysAndValuesInThirds) {
  HfFolder folder;
  folder.write_whole();
  const Resolved model = tiny_model();
  const auto info = infos_of(model).at("h.0.attn.c_attn.weight");
  at::Tensor ours = at::zeros({3, 2, 2, 4});

  source_of(folder.dir.path(), model)(*info, 0, info->numel(), ours.data_ptr<float>());

  // Key (1) of head 1, channel 0, from input 3: column 4 + 2 + 0 of row 3.
  EXPECT_EQ(ours[1][1][0][3].item<float>(),
            folder.tensors.at("h.0.attn.c_attn.weight")[3][6].item<float>());
}

TEST(Gpt2HfWeights, LoadShards) {
  HfFolder folder;
  const auto in_first = [](const std::string& name) { return name.size() % 2 == 0; };
  folder.write("model-00001-of-00002.safetensors", "transformer.", in_first);
  folder.write("model-00002-of-00002.safetensors", "transformer.", [&](const std::string& name) {
    return !in_first(name);
  });
  std::string map;
  for (const auto& [name, tensor] : folder.tensors) {
    map += (map.empty() ? "" : ", ") + ("\"transformer." + name) + "\": \"model-0000" +
           (in_first(name) ? "1" : "2") + "-of-00002.safetensors\"";
  }
  files::write_atomic(folder.dir.path() / "model.safetensors.index.json",
                      "{\"weight_map\": {" + map + "}}");

  expect_all_loaded(folder, tiny_model());
}

TEST(Gpt2HfWeights, RefuseAnIndexThatLeadsOutOfTheFolder) {
  HfFolder folder;
  files::write_atomic(folder.dir.path() / "model.safetensors.index.json",
                      "{\"weight_map\": {\"a\": \"../secret.safetensors\"}}");

  error_of([&] { source_of(folder.dir.path(), tiny_model()); }, Error::Kind::Format);
}

TEST(Gpt2HfWeights, IgnoreMasksAndATiedHead) {
  HfFolder folder;
  folder.add("h.0.attn.bias", {1, 1, 3, 3});
  folder.add("h.0.attn.masked_bias", {1});
  folder.tensors["lm_head.weight"] = folder.tensors.at("wte.weight");
  folder.write_whole("");

  expect_all_loaded(folder, tiny_model());
}

TEST(Gpt2HfWeights, LoadAHeadOfItsOwn) {
  HfFolder folder;
  folder.add("lm_head.weight", {5, 4});
  folder.write_whole("");

  expect_all_loaded(folder, tiny_model(/*tie=*/false));
}

TEST(Gpt2HfWeights, ReadEveryFloatType) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kDouble}) {
    HfFolder folder;
    folder.write(
        "model.safetensors", "transformer.", [](const std::string&) { return true; }, type);
    for (auto& [name, tensor] : folder.tensors)
      tensor = tensor.to(type).to(at::kFloat);

    expect_all_loaded(folder, tiny_model());
  }
}

TEST(Gpt2HfWeights, ListWhatDoesNotFit) {
  HfFolder folder;
  folder.tensors.erase("h.0.ln_2.bias");
  folder.add("score.weight", {2, 4});
  folder.add("h.0.mlp.c_fc.weight", {6, 4});
  folder.write_whole();

  const std::string text =
      error_of([&] { source_of(folder.dir.path(), tiny_model()); }, Error::Kind::Format);

  EXPECT_NE(text.find("missing (1): transformer.h.0.ln_2.bias"), std::string::npos) << text;
  EXPECT_NE(text.find("unexpected (1): transformer.score.weight"), std::string::npos) << text;
  EXPECT_NE(
      text.find("of another shape (1): transformer.h.0.mlp.c_fc.weight [6, 4] instead of [4, 6]"),
      std::string::npos)
      << text;
}

TEST(Gpt2HfWeights, RefuseTwoNamesOfOneTensor) {
  HfFolder folder;
  folder.tensors["module.wpe.weight"] = folder.tensors.at("wpe.weight").clone();
  folder.write_whole("");

  EXPECT_NE(error_of([&] { source_of(folder.dir.path(), tiny_model()); }, Error::Kind::Format)
                .find("unexpected (1): "),
            std::string::npos);
}

// The matrix has more rows and columns than are read at a time.
TEST(Gpt2HfWeights, TransposeLargeMatricesInAnyRange) {
  HfFolder folder;
  folder.add("h.0.mlp.c_fc.weight", {4, 37});
  folder.add("h.0.mlp.c_fc.bias", {37});
  folder.add("h.0.mlp.c_proj.weight", {37, 4});
  folder.write_whole();

  expect_all_loaded(folder, tiny_model(/*tie=*/true, /*ffn=*/37));
}

TEST(Gpt2HfWeights, SayWhichFilesTheyLookFor) {
  const files::TempDir empty;

  const std::string text =
      error_of([&] { source_of(empty.path(), tiny_model()); }, Error::Kind::Format);

  EXPECT_NE(text.find("model.safetensors"), std::string::npos);
}

TEST(HfFolderOptions, TakeShapeFromTheFolderAndDropoutFromTheUser) {
  config::Problems problems;
  config::Origins origins;
  origins.note("model.dropout", {});
  const ModelOptions given = options_of(R"({"dropout": 0.25, "from": "a folder"})");

  const ModelOptions options = merge_options(
      given,
      options_from_hf(json::parse_strict(
          R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 48, "n_head": 4})", "hf")),
      problems,
      origins);

  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(integer_of(options, "num_layers"), 2);
  EXPECT_EQ(number_of(options, "dropout"), 0.25);
  EXPECT_FALSE(options.has("attention_dropout"));
  EXPECT_EQ(options->from, "a folder");
}

TEST(HfFolderOptions, RefuseSizesThatContradictTheWeights) {
  config::Problems problems;
  config::Origins origins;
  origins.note("model.num_layers", {});

  merge_options(
      options_of(R"({"num_layers": 3})"),
      options_from_hf(json::parse_strict(R"({"model_type": "gpt2", "n_layer": 2})", "hf")),
      problems,
      origins);

  ASSERT_EQ(problems.list().size(), 1U);
  EXPECT_EQ(problems.list()[0].path, "model.num_layers");
}

}  // namespace
}  // namespace tessera::interop
