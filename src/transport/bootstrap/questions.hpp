#pragma once
#include "transport/bootstrap/packing.hpp"

// What a rank asks another about itself, and the answer: the bodies of two kinds of frames.
namespace stretto {

struct Question {
  int from = 0, about = 0;  // ranks
  RankAccount answer;       // empty in a question
};

inline Bytes bytes_of(const Question& question) {
  const std::string& text = question.answer.text;
  return packed({bytes_of(std::vector<int>{question.from, question.about}), bytes_of(question.answer.waits_for),
                 bytes_of(std::vector<char>(text.begin(), text.end()))});
}

// Throws Error(internal) if the bytes, which come from another rank of `size`, are no question.
inline Question question_of(const Bytes& bytes, int size) {
  const std::vector<Bytes> parts = unpacked(bytes, 3);
  const std::vector<int> ends = values_of<int>(parts[0]);
  ensure(ends.size() == 2, "a question or an answer of it is truncated.");
  Question question{ends[0], ends[1], {{}, values_of<int>(parts[1])}};
  for (const char letter : values_of<char>(parts[2])) question.answer.text += letter;
  std::vector<int> ranks = question.answer.waits_for;
  ranks.insert(ranks.end(), ends.begin(), ends.end());
  for (const int rank : ranks) ensure(rank >= 0 && rank < size, "a question of it is about rank {}, of {}.", rank, size);
  return question;
}

}  // namespace stretto
