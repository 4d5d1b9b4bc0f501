# SPDX-License-Identifier: Apache-2.0
# Runs a unit test that was linked with a mutated file: it must fail, and in the words expected.
#   cmake -DMUTANT=… -DCLAIM="subject: claim" -DWORDS=… -P unit_mutant.cmake
execute_process(COMMAND ${MUTANT} --only ${CLAIM} RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE text)
if(status STREQUAL 0)
  message(FATAL_ERROR "the mutant lives: '${CLAIM}' passes\n${text}")
endif()
string(FIND "${text}" "${WORDS}" at)
if(at EQUAL -1)
  message(FATAL_ERROR "the mutant ends with ${status}, but not in the words '${WORDS}':\n${text}")
endif()
