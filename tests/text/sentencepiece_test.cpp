// SPDX-License-Identifier: Apache-2.0
// SentencePiece models. tests/text/sentencepiece/ has small ones that this library (0.2.3) trained
// on tinyshakespeare with some lines in other languages, the library's own answers (cases.jsonl),
// and those of the classes of transformers 4.33 for the model `unigram` (classes.json; its texts
// have no line ends, which that version removes next to special tokens, and later ones do not).
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/source_dir.h"
#include "tests/golden/golden.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/text/tokenizer.h"
#include "tessera/text/tokenizers/sentencepiece_file.h"
#include "tessera/text/tokenizers/tokenizer_file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using text::tokenizers::Encoding;
using text::tokenizers::Pipeline;
using text::tokenizers::SentencePieceModel;
using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

const fs::path kFolder = tessera::test::source_dir() / "tests/text/sentencepiece";

std::vector<Json> lines_of(const fs::path& path) {
  std::vector<Json> out;
  std::istringstream in(files::read(path));
  for (std::string line; std::getline(in, line);)
    out.push_back(Json::parse(line));
  return out;
}

Pipeline pipeline_of(const fs::path& file) {
  return Pipeline(text::tokenizers::read_tokenizer_file(file).parts, file.string());
}

Ids plain_ids(const Pipeline& pipeline, const std::string& text) {
  Ids out;
  pipeline.encode_ids(text, out, /*special=*/false);
  return out;
}

/// A folder with a model and a tokenizer_config.json.
class Folder {
 public:
  Folder(const std::string& name, const std::string& bytes, const std::string& config = "{}")
      : name_(name) {
    write(name, bytes);
    write("tokenizer_config.json", config);
  }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(temp_.path() / name, std::ios::binary) << content;
  }
  [[nodiscard]] fs::path file() const { return temp_.path() / name_; }
  [[nodiscard]] const fs::path& path() const { return temp_.path(); }

 private:
  files::TempDir temp_;
  std::string name_;
};

Error error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error;
  }
  throw std::logic_error("no error");
}

// The wire format of protocol buffers, as far as these models need it.
std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7)
    out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}
std::string bytes_field(int number, const std::string& bytes) {
  return varint(static_cast<std::uint64_t>(number) << 3 | 2) + varint(bytes.size()) + bytes;
}
std::string number_field(int number, std::uint64_t value) {
  return varint(static_cast<std::uint64_t>(number) << 3) + varint(value);
}
std::string piece(const std::string& text, int type = 1) {
  return bytes_field(1, bytes_field(1, text) + number_field(3, static_cast<std::uint64_t>(type)));
}
const std::string kUnknown = piece("<unk>", 2);

TEST(SentencePiece, GivesTheIdsAndTextsOfTheLibrary) {
  int compared = 0;
  for (const Json& record : lines_of(kFolder / "cases.jsonl")) {
    SCOPED_TRACE(record.dump());
    const std::string file = record.at("model").get<std::string>() + ".model";
    const Pipeline pipeline = pipeline_of(kFolder / file);
    const Ids ids = record.at("ids").get<Ids>();

    if (record.contains("text")) {
      EXPECT_EQ(plain_ids(pipeline, record["text"].get<std::string>()), ids);
    }
    EXPECT_EQ(pipeline.decode(ids), record.at("decoded").get<std::string>());
    ++compared;
  }
  EXPECT_GT(compared, 200);
}

TEST(SentencePiece, HasTheIdsAndSurroundingsOfItsClass) {
  for (const Json& one : Json::parse(files::read(kFolder / "classes.json"))) {
    SCOPED_TRACE(one.at("config").dump());
    const Folder folder(one.at("file").get<std::string>(),
                        files::read(kFolder / "unigram.model"),
                        one.at("config").dump());
    const Pipeline pipeline = pipeline_of(folder.file());
    EXPECT_EQ(pipeline.size(), one.at("size").get<std::int64_t>());
    for (const Json& record : one.at("cases")) {
      SCOPED_TRACE(record.dump());
      const auto text = record.at("text").get<std::string>();

      const Encoding pair = pipeline.encode_pair(text, record.at("pair").get<std::string>());

      EXPECT_EQ(Json(pipeline.encode(text).ids), record.at("ids"));
      EXPECT_EQ(Json(pair.ids), record.at("pair_ids"));
      if (record.contains("type_ids")) {
        EXPECT_EQ(Json(pair.type_ids), record["type_ids"]);
      }
    }
  }
}

TEST(SentencePiece, OfAModelFolderIsFoundByItsClassOrModelType) {
  const Folder folder("spiece.model", files::read(kFolder / "unigram.model"));
  folder.write("config.json", R"({"model_type": "t5", "eos_token_id": 2})");
  const text::TokenizerPtr tokenizer = text::tokenizer_from_folder(folder.path());
  const auto pieces =
      text::tokenizers::read_sentencepiece(files::read(folder.file()), "test").pieces.size();

  EXPECT_EQ(tokenizer->name(), "file");
  Ids ids;
  tokenizer->encode("<extra_id_0><extra_id_99><pad>", ids);
  const auto behind = static_cast<std::int32_t>(pieces);
  // The model has no piece <pad>, which follows the sentinels.
  EXPECT_EQ(ids, (Ids{behind + 99, behind, behind + 100}));
  EXPECT_EQ(tokenizer->size(), behind + 101);
}

TEST(SentencePiece, MergesCharactersThatHaveNoPieceOfTheirOwn) {
  // "ab" is a piece, "a" is none.
  const std::string model =
      kUnknown + piece("\u2581") + piece("b") + piece("ab") + bytes_field(2, number_field(3, 2));
  const Folder folder("tokenizer.model", model);
  EXPECT_EQ(plain_ids(pipeline_of(folder.file()), "ab ba"), (Ids{1, 3, 1, 2, 0}));
}

TEST(SentencePiece, RefusesWhatDoesNotHoldTogether) {
  const auto kind_of = [](const std::string& bytes, const std::string& config = "{}") {
    const Folder folder("tokenizer.model", bytes, config);
    return error_of([&] { (void)pipeline_of(folder.file()); }).kind();
  };
  const auto trainer = [](int field, std::uint64_t value) {
    return bytes_field(2, number_field(field, value));
  };
  const std::string sound = kUnknown + piece("a");

  EXPECT_EQ(kind_of(""), Error::Kind::Format);
  EXPECT_EQ(kind_of("\n\xFF\xFF\xFF\xFF\x0Fxy"), Error::Kind::Format);      // a length past the end
  EXPECT_EQ(kind_of("\n" + std::string(12, '\xFF')), Error::Kind::Format);  // an endless number
  EXPECT_EQ(kind_of(piece("a")), Error::Kind::Format);                      // no unknown
  EXPECT_EQ(kind_of(kUnknown + piece("b", 2)), Error::Kind::Format);
  EXPECT_EQ(kind_of(sound + piece("a")), Error::Kind::Format);
  EXPECT_EQ(kind_of(sound + piece("")), Error::Kind::Format);
  EXPECT_EQ(kind_of(sound + piece("\xFF")), Error::Kind::Format);
  EXPECT_EQ(kind_of(sound + piece("c", 9)), Error::Kind::Format);
  EXPECT_EQ(kind_of(sound + trainer(35, 1)), Error::Kind::Format);  // bytes without their pieces
  EXPECT_EQ(kind_of(sound + trainer(3, 4)), Error::Kind::Unsupported);
  EXPECT_EQ(kind_of(sound + piece("c", 5) + trainer(3, 2)), Error::Kind::Unsupported);
  EXPECT_EQ(kind_of(sound + bytes_field(3, bytes_field(2, "abc"))), Error::Kind::Format);
  EXPECT_EQ(kind_of(sound, R"({"tokenizer_class": "MarianTokenizer"})"), Error::Kind::Unsupported);
  EXPECT_EQ(kind_of(sound, R"({"sp_model_kwargs": {"enable_sampling": true}})"),
            Error::Kind::Unsupported);
  EXPECT_EQ(kind_of(sound, R"({"tokenizer_class": "MBartTokenizer", "src_lang": "xx"})"),
            Error::Kind::Format);
}

TEST(SentencePiece, IsExactOnRecordedModels) {
  int compared = 0;
  for (const auto& folder : golden::cases("tokenizers")) {
    for (const char* name : {"spiece.model", "tokenizer.model"}) {
      if (!fs::exists(folder / name)) continue;
      const Pipeline pipeline = pipeline_of(folder / name);
      for (const Json& record : lines_of(folder / "cases.jsonl")) {
        const auto text = record.at("text").get<std::string>();
        SCOPED_TRACE(folder.filename().string() + ": " + record.at("text").dump());
        const Ids ids = record.at("ids_sentencepiece").get<Ids>();

        EXPECT_EQ(plain_ids(pipeline, text), ids);
        EXPECT_EQ(pipeline.decode(ids), record.at("decoded_sentencepiece").get<std::string>());
        // The tokenizer.json made from the model, with special tokens that are found in the text
        // and put around it.
        if (record.value("differs_from_sentencepiece", false)) continue;
        EXPECT_EQ(Json(pipeline.encode(text).ids), record.at("ids"));
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 0) << "no model of sentencepiece in " << golden::folder();
}

}  // namespace
}  // namespace tessera
