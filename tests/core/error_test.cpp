#include "stretto/error.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>

#include "core/fail.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

TEST(Errors, EveryCodeHasANameOfItsOwn) {
  std::set<std::string> names;
  for (const ErrorCode code : {ErrorCode::invalid_argument, ErrorCode::unavailable, ErrorCode::io, ErrorCode::timeout,
                               ErrorCode::peer_lost, ErrorCode::peer_gave_up, ErrorCode::internal}) {
    EXPECT_TRUE(names.insert(name(code)).second) << name(code);
  }
  EXPECT_EQ(names.count("unknown"), 0U);
}

TEST(Errors, OfTheStandardLibraryBecomeSentences) {
  EXPECT_EQ(error_sentence(Error(ErrorCode::io, "It is so.")), "It is so.");
  EXPECT_EQ(error_sentence(std::runtime_error("It is so.")), "It is so.");
  EXPECT_EQ(error_sentence(std::bad_alloc()),
            "Memory has run out (std::bad_alloc); give this process more of it, or ask for less.");
  EXPECT_EQ(error_sentence(std::length_error("vector::reserve")),
            "A size is beyond any memory (vector::reserve); give smaller numbers.");
  const std::system_error no_thread(std::make_error_code(std::errc::resource_unavailable_try_again));
  EXPECT_EQ(error_sentence(no_thread),
            "A thread could not be started (Resource temporarily unavailable); raise the limit of processes (ulimit -u, "
            "pids.max), or start fewer.");
  const std::filesystem::filesystem_error file("cannot rename", "a", "b",
                                               std::make_error_code(std::errc::permission_denied));
  EXPECT_EQ(error_sentence(file), "a or b cannot be used: Permission denied.");
}

TEST(Errors, CarryTheirCodeAndASentence) {
  EXPECT_EQ(sentence_of(ErrorCode::io, [] { fail(ErrorCode::io, "Cannot read {}: {}.", "the text", errno_text(ENOENT)); }),
            "Cannot read the text: No such file or directory.");
}

TEST(Errors, OfAWrongArgumentAndOfABugDiffer) {
  sentence_of(ErrorCode::invalid_argument, [] { require(false, "wrong"); });
  sentence_of(ErrorCode::internal, [] { ensure(false, "a bug"); });
  EXPECT_NO_THROW(require(true, "right"));
}

}  // namespace
}  // namespace stretto
