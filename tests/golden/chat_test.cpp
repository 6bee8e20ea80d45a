// SPDX-License-Identifier: Apache-2.0
// Conversations as transformers renders them with a model's chat template.
#include <iostream>

#include "golden/golden.h"
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/text/chat/chat_template.h"

namespace tessera {
namespace {

bool flag(const json::Value& record, const char* name) {
  const json::Value* found = record.find(name);
  return found != nullptr && found->as_bool();
}

/// The arguments of a case; every name that is not the library's is a variable of the template.
text::chat::RenderOptions options_of(const json::Value& record) {
  text::chat::RenderOptions options;
  options.variables = json::Value::object();
  options.add_generation_prompt = flag(record, "add_generation_prompt");
  options.continue_final_message = flag(record, "continue_final_message");
  for (const auto& [name, value] : record.members()) {
    if (name == "tools") {
      options.tools = value;
    } else if (name == "documents") {
      options.documents = value;
    } else if (name != "messages" && name != "rendered" && name != "error" &&
               name != "add_generation_prompt" && name != "continue_final_message" &&
               name != "input_ids" && name != "assistant_masks") {
      options.variables[name] = value;
    }
  }
  return options;
}

std::string rendered_or_error(const text::chat::ChatTemplate& chat, const json::Value& record) {
  try {
    return chat.render(golden::at(record, "messages"), options_of(record)).text;
  } catch (const Error& error) {
    const std::string what = error.what(), lead = "the chat template refuses this conversation: ";
    return "error: " + (what.rfind(lead, 0) == 0 ? what.substr(lead.size()) : what);
  }
}

TEST(GoldenChat, TemplatesRenderAsPublished) {
  int compared = 0;
  for (const auto& folder : golden::cases("chat")) {
    if (!golden::fs::is_directory(folder)) continue;
    if (!golden::fs::exists(folder / "cases.jsonl")) {
      // The test below reads these.
      EXPECT_TRUE(golden::fs::exists(folder / "masks.jsonl")) << folder;
      continue;
    }
    for (const json::Value& record : golden::read_jsonl(folder / "cases.jsonl")) {
      SCOPED_TRACE(folder.filename().string() + ": " + record.dump());
      const json::Value* tools = record.find("tools");
      const auto chat =
          text::chat::find_chat_template(folder, {}, tools != nullptr && !tools->is_null());
      ASSERT_TRUE(chat);
      const json::Value* error = record.find("error");

      const std::string made = rendered_or_error(*chat, record);

      EXPECT_EQ(made,
                error != nullptr ? "error: " + error->as_string()
                                 : golden::at(record, "rendered").as_string());
      ++compared;
    }
  }
  std::cout << "ran " << compared << " conversations\n";
  EXPECT_GT(compared, 0) << "no case of a chat template in " << golden::folder();
}

/// Compares the texts of the runs of tokens that a mask marks, where the tokens are determined by
/// their bytes alone: in these cases no span begins or ends within a token.
TEST(GoldenChat, TheAssistantsSpansCoverAsManyRunsAsTheMasks) {
  int compared = 0;
  for (const auto& folder : golden::cases("chat")) {
    if (!golden::fs::exists(folder / "masks.jsonl")) continue;
    const auto chat = text::chat::find_chat_template(folder);
    ASSERT_TRUE(chat);
    EXPECT_TRUE(chat->marks_assistant());
    for (const json::Value& record : golden::read_jsonl(folder / "masks.jsonl")) {
      SCOPED_TRACE(folder.filename().string() + ": " + record.dump());
      std::size_t runs = 0;
      bool inside = false;
      for (const json::Value& one : golden::at(record, "assistant_masks").items()) {
        const bool marked = one.as_integer().value() != 0;
        if (marked && !inside) ++runs;
        inside = marked;
      }

      const auto made = chat->render(golden::at(record, "messages"), options_of(record));
      std::size_t spans = 0, end = std::string::npos;
      for (const auto& span : made.assistant) {
        if (span.first != end) ++spans;  // one that follows another continues its run
        end = span.second;
      }

      EXPECT_EQ(made.text, golden::at(record, "rendered").as_string());
      EXPECT_EQ(spans, runs);
      ++compared;
    }
  }
  EXPECT_GT(compared, 0) << "no masks in " << golden::folder();
}

}  // namespace
}  // namespace tessera
