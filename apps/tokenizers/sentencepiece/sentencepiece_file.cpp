#include "apps/tokenizers/sentencepiece/sentencepiece_file.hpp"

#include <algorithm>

#include "apps/common/fail.hpp"
#include "apps/tokenizers/sentencepiece/protobuf.hpp"

namespace apps {

namespace {

// Numbers of fields in sentencepiece_model.proto.
enum ModelField : std::uint32_t { pieces = 1, trainer_spec = 2, normalizer_spec = 3 };
enum PieceField : std::uint32_t { piece_text = 1, piece_score = 2, piece_type = 3 };
enum TrainerField : std::uint32_t {
  model_type = 3,
  treat_whitespace_as_suffix = 24,
  byte_fallback = 35,
  unknown_surface = 44,
  beginning_piece = 46,
  end_piece = 47
};
enum NormalizerField : std::uint32_t {
  precompiled_charsmap = 2,
  add_dummy_prefix = 3,
  remove_extra_whitespaces = 4,
  escape_whitespaces = 5
};

class Reader {
 public:
  Reader(const std::string& path, std::string_view bytes) : path_(path) {
    ProtobufReader reader(path_, bytes);
    while (reader.next()) {
      if (reader.field() == pieces) read_piece(reader.bytes());
      if (reader.field() == trainer_spec) read_trainer(reader.bytes());
      if (reader.field() == normalizer_spec) read_normalizer(reader.bytes());
    }
    model_.beginning = control_piece(beginning_);
    model_.end = control_piece(end_);
  }

  SentencePieceModel take() { return std::move(model_); }

 private:
  void read_piece(std::string_view bytes) {
    SentencePieceModel::Piece piece;
    ProtobufReader reader(path_, bytes);
    while (reader.next()) {
      if (reader.field() == piece_text) piece.text = reader.bytes();
      if (reader.field() == piece_score) piece.score = reader.number();
      if (reader.field() == piece_type) piece.type = static_cast<std::int32_t>(reader.varint());
    }
    model_.pieces.push_back(std::move(piece));
  }

  void read_trainer(std::string_view bytes) {
    ProtobufReader reader(path_, bytes);
    while (reader.next()) {
      switch (reader.field()) {
        case model_type: model_.kind = static_cast<std::int32_t>(reader.varint()); break;
        case treat_whitespace_as_suffix: model_.puts_spaces_behind = reader.varint() != 0; break;
        case byte_fallback: model_.has_byte_fallback = reader.varint() != 0; break;
        case unknown_surface: model_.unknown_surface = reader.bytes(); break;
        case beginning_piece: beginning_ = reader.bytes(); break;
        case end_piece: end_ = reader.bytes(); break;
        default: break;
      }
    }
  }

  void read_normalizer(std::string_view bytes) {
    ProtobufReader reader(path_, bytes);
    while (reader.next()) {
      switch (reader.field()) {
        case precompiled_charsmap: model_.charsmap = reader.bytes(); break;
        case add_dummy_prefix: model_.adds_dummy_prefix = reader.varint() != 0; break;
        case remove_extra_whitespaces: model_.removes_extra_spaces = reader.varint() != 0; break;
        case escape_whitespaces: model_.escapes_spaces = reader.varint() != 0; break;
        default: break;
      }
    }
  }

  std::optional<std::int32_t> control_piece(const std::string& text) const {
    const auto is_it = [&](const auto& piece) { return piece.text == text && piece.type == SentencePieceModel::control; };
    const auto found = std::ranges::find_if(model_.pieces, is_it);
    if (found == model_.pieces.end()) return std::nullopt;
    return static_cast<std::int32_t>(found - model_.pieces.begin());
  }

  const std::string& path_;
  SentencePieceModel model_;
  std::string beginning_ = "<s>", end_ = "</s>";
};

}  // namespace

bool looks_like_sentencepiece(std::string_view bytes) {
  constexpr char piece_key = pieces << 3 | 2, text_key = piece_text << 3 | 2;
  return bytes.size() > 4 && bytes[0] == piece_key && bytes.substr(2, 2).find(text_key) != std::string_view::npos;
}

SentencePieceModel read_sentencepiece(const std::string& path, std::string_view bytes) { return Reader(path, bytes).take(); }

}  // namespace apps
