// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/compose_options.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/ops/activation.h"
#include "tessera/ops/relative_position.h"

namespace tessera::models {

const std::vector<Preset>& composed_presets() {
  static const std::vector<Preset> all = {nano("compose-nano", 4, 128, 4)};
  return all;
}

const std::vector<std::string>& composed_embeddings() {
  static const std::vector<std::string> all = {"word", "pos", "seg", "patch"};
  return all;
}

namespace {

/// The reason why an embedding of TencentPretrain is refused; empty for another word.
std::string unbuilt(std::string_view word) {
  if (word == "speech")
    return "the embedding \"speech\" reads sounds, and models of speech are not built";
  if (word == "sinusoidalpos" || word == "dual" || word == "word_patch" || word == "masked_patch")
    return fmt::format("TencentPretrain's embedding \"{}\" is not built", word);
  return "";
}

}  // namespace

bool ComposeOptions::check_embedding(Checks& checks) const {
  const auto speech = std::ranges::find(embedding, "speech");
  bool known = true;
  for (auto word = embedding.begin(); word != embedding.end(); ++word) {
    if (std::ranges::find(composed_embeddings(), *word) != composed_embeddings().end()) continue;
    known = false;
    if (speech != embedding.end() && word != speech) continue;
    std::string reason = unbuilt(*word);
    const bool of_tencent = !reason.empty();
    checks.require(
        false,
        "model.embedding",
        of_tencent ? std::move(reason) : fmt::format("unknown value \"{}\"", *word),
        of_tencent ? "set model.embedding to [\"word\", \"pos\"], to read text, or to [\"patch\", "
                     "\"pos\"], to read images"
                   : text::suggestion(*word, composed_embeddings()));
  }
  return known;
}

std::int64_t ComposeOptions::rotary_channels(std::int64_t head_dim, Checks& checks) const {
  if (rotary_fraction == 1.0) return 0;
  checks.require(position == "rotary",
                 "model.rotary_fraction",
                 "the model has no rotary positions",
                 "set position to rotary, or remove rotary_fraction");
  const std::int64_t out = std::llround(rotary_fraction * static_cast<double>(head_dim));
  checks.require(
      out >= 2 && out % 2 == 0,
      "model.rotary_fraction",
      fmt::format(
          "rotary positions turn pairs of channels, and {} of {} would turn", out, head_dim),
      "choose a share with an even number of channels");
  return out;
}

void ComposeOptions::set_other_forms(ComposedShape& shape, Checks& checks) const {
  shape.rotary_channels = rotary_channels(shape.head_dim, checks);
  shape.qk_norm = qk_norm;
  shape.shared_positions = shared_positions;
  checks.require(!shared_positions || (decoder != "none" && shape.embedding.positions),
                 "model.shared_positions",
                 "the model has no second table of positions that could be the first",
                 "set decoder to transformer and name \"pos\" in embedding, or remove "
                 "shared_positions");
}

json::Value ComposeOptions::described(json::Value description) const {
  std::erase_if(description.members(), [&](const auto& member) {
    return (member.first == "rotary_fraction" && rotary_fraction == 1.0) ||
           (member.first == "qk_norm" && !qk_norm) ||
           (member.first == "shared_positions" && !shared_positions);
  });
  return description;
}

void ComposeOptions::refuse_to_publish() const {
  TESSERA_REQUIRE(rotary_fraction == 1.0,
                  Unsupported,
                  fmt::format("model.rotary_fraction is {}, and TencentPretrain turns all channels",
                              rotary_fraction),
                  "train with rotary_fraction 1");
  TESSERA_REQUIRE(!qk_norm && !shared_positions,
                  Unsupported,
                  "TencentPretrain has no norms of queries and keys, and positions of its own for "
                  "the decoder",
                  "train with qk_norm and shared_positions false");
}

void ComposeOptions::describe(config::Fields& fields) {
  describe_sizes(fields,
                 {.presets = names_of(composed_presets()),
                  .preset_default = "compose-nano if no size is given",
                  .positions_default = "data.sequence_length, or 1024",
                  .ffn_default = "4 x hidden_size"});
  describe_parts(fields);
  describe_images(fields);
  describe_layers(fields);
  describe_decoder(fields);
  describe_tie(fields);
  describe_init(fields, "Standard deviation of initial weights.");
  describe_label_smoothing(fields);
  describe_from(fields);
}

void ComposeOptions::describe_parts(config::Fields& fields) {
  fields.field(
      "embedding",
      embedding,
      {.text = "Summands of a token's embedding: \"word\", its position \"pos\", its segment "
               "(the token type) \"seg\"; or the \"patch\" of an image, and its position "
               "\"pos\"."});
  fields.field("embedding_norm",
               embedding_norm,
               {.text = "Whether the embedding is normalized.",
                .default_text = "where norm_position is post"});
  fields.field("position_offset",
               position_offset,
               {.text = "Row of the position table for the first token; if above 0, padding has "
                        "no position (RoBERTa: 2).",
                .min = 0,
                .max = 1e6});
  fields.field("encoder",
               encoder,
               {.text = "The stack that reads the input (encoder).", .choices = {"transformer"}});
  fields.field("decoder",
               decoder,
               {.text = "The stack that generates the output from the encoder's (decoder).",
                .choices = {"none", "transformer"}});
  fields.field(
      "target",
      target,
      {.text = "Heads of the model: the next token, masked tokens, whether one text follows the "
               "other, the class of a sample. The task selects the one that is trained.",
       .choices = {"lm", "mlm", "sp", "cls"}});
  fields.field(
      "lm_bias", lm_bias, {.text = "Whether the logits of the head lm have a learned bias."});
}
void ComposeOptions::describe_layers(config::Fields& fields) {
  fields.field(
      "mask",
      mask,
      {.text = "Which tokens a token of the encoder attends to: all; itself and earlier ones; or "
               "these, but in a prefix, which the task prefix_lm gives, all of the prefix.",
       .choices = {"fully_visible", "causal", "causal_with_prefix"}});
  fields.field("norm_position",
               norm_position,
               {.text = "Whether norms come before or after the branches of a layer.",
                .choices = {"pre", "post"}});
  fields.field(
      "norm", norm, {.text = "The normalization of the layers.", .choices = {"layer_norm", "rms"}});
  fields.field("norm_eps",
               norm_eps,
               {.text = "Epsilon added to the variance or the mean square in norms.",
                .min = 0,
                .max = 1,
                .above_min = true});
  fields.field(
      "feed_forward",
      feed_forward,
      {.text = "The MLP: two projections, or three with a gate.", .choices = {"dense", "gated"}});
  fields.field("activation",
               activation,
               {.text = "Activation function of the MLP or of its gate.",
                .choices = ops::activation_names()});
  fields.field("bias", bias, {.text = "Whether the projections of the layers have biases."});
  fields.field("scale_attention",
               scale_attention,
               {.text = "Whether attention scores are divided by the square root of head_dim."});
  fields.field(
      "position",
      position,
      {.text = "Position information of the layers: only from the embedding, a learned attention "
               "bias by distance, or rotary positions on neighbouring channels.",
       .choices = {"embedding", "relative", "rotary"}});
  fields.field("head_dim",
               head_dim,
               {.text = "Channels of one attention head.",
                .min = 1,
                .max = 1e6,
                .default_text = "hidden_size / num_heads"});
  fields.field("position_buckets",
               position_buckets,
               {.text = "Number of distance buckets, with position relative.",
                .min = static_cast<double>(ops::least_buckets(true)),
                .max = 1e5});
  fields.field("position_max_distance",
               position_max_distance,
               {.text = "Distance from which all tokens share one bucket.",
                .unit = "tokens",
                .min = 2,
                .max = 1e8});
  fields.field("rope_theta",
               rope_theta,
               {.text = "Base of the frequencies, with position rotary.", .min = 1, .max = 1e12});
  fields.field("rotary_fraction",
               rotary_fraction,
               {.text = "Share of a head's channels, the first ones, that rotary positions turn.",
                .min = 0,
                .max = 1,
                .above_min = true});
  fields.field("qk_norm",
               qk_norm,
               {.text = "Whether the queries and keys of each head have norms, of the kind `norm`; "
                        "those of attention to the encoder have none."});
  describe_dropout(fields,
                   "Dropout probability after the embedding, on attention weights and on the "
                   "outputs of the branches.");
}
void ComposeOptions::describe_decoder(config::Fields& fields) {
  fields.field("num_decoder_layers",
               num_decoder_layers,
               {.text = "Number of layers of the decoder.",
                .min = 1,
                .max = 1e4,
                .default_text = "num_layers"});
  fields.field("shared_positions",
               shared_positions,
               {.text = "Whether the decoder's positions are those of the encoder, one table."});
  fields.field("scale_output",
               scale_output,
               {.text = "Whether the input of a decoder's head is divided by the square root of "
                        "hidden_size."});
  fields.field("start_token",
               start_token,
               {.text = "Token with which the decoder's input begins.", .min = 0, .max = 1e8});
  fields.field("pad_token",
               pad_token,
               {.text = "Token that replaces an ignored label in the decoder's input.",
                .min = 0,
                .max = 1e8});
}

void ComposeOptions::describe_images(config::Fields& fields) {
  const auto size =
      [&](const char* key, auto& member, const char* text, const char* otherwise, double most) {
        fields.field(key, member, {.text = text, .min = 1, .max = most, .default_text = otherwise});
      };
  size("image_size",
       image_size,
       "Rows and columns of an image, in pixels, with embedding patch.",
       "224",
       1e5);
  size("patch_size", patch_size, "Rows and columns of a patch; must divide image_size.", "16", 1e5);
  size("num_channels", num_channels, "Channels of an image: 3 of a coloured one.", "3", 1e4);
  fields.field("pooler",
               pooler,
               {.text = "Whether the heads sp and cls begin with a linear layer and tanh; without "
                        "it they are one linear layer, as ViT's."});
}

}  // namespace tessera::models
