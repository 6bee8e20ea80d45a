// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/huggingface/decoder_padding.h"

#include "tessera/text/tokenizer.h"

namespace tessera::interop {
namespace {

bool classifies_texts(const json::Value& config) {
  const json::Value* const names = config.find("architectures");
  return names != nullptr && names->is_array() && !names->items().empty() &&
         names->items().front().as_string().ends_with("ForSequenceClassification");
}

}  // namespace

void say_padding(const models::ModelSource& source,
                 json::Value& config,
                 TextFiles& files,
                 bool brought) {
  json::Value& id = config["pad_token_id"];
  // If the key is missing, transformers uses the padding id of the published model, which can be
  // beyond this vocabulary.
  if (!id.is_null() || !classifies_texts(config)) return;
  if (source.says_tokenizer) {
    id = json::Value::integer(models::source_tokenizer(source)->padding());
  } else if (const json::Value* const end = config.find("eos_token_id");
             end != nullptr && end->as_integer()) {
    id = json::Value(*end);
  }
  if (brought) return;
  for (auto& [name, text] : files) {
    if (name != "tokenizer_config.json") continue;
    json::Value settings = json::parse(text, name);
    const json::Value* const end = settings.find("eos_token");
    if (end == nullptr || settings.find("pad_token") != nullptr) continue;
    settings["pad_token"] = json::Value(*end);
    text = settings.dump(2) + "\n";
  }
}

}  // namespace tessera::interop
