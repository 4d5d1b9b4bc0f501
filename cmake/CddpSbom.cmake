# SPDX-License-Identifier: Apache-2.0
# The bill of materials (SPDX 2.3, JSON) and the licences of parts that are contained, both from packaging/parts.txt.
# The same sources and headers give the same bytes: its date is SOURCE_DATE_EPOCH, or the beginning of 1970.

set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/packaging/parts.txt)

# The version that a header of this machine states; "" where it is not there.
function(cddp_part_version out rule)
  string(FIND "${rule}" ":" at)
  string(SUBSTRING "${rule}" 0 ${at} header)
  math(EXPR at "${at} + 1")
  string(SUBSTRING "${rule}" ${at} -1 pattern)
  set(${out} "" PARENT_SCOPE)
  find_file(part_header NAMES ${header} NO_CACHE PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openmpi/include)
  if(NOT part_header)
    return()
  endif()
  file(STRINGS ${part_header} lines REGEX "${pattern}")
  set(version "")
  foreach(line ${lines})
    if(line MATCHES "${pattern}")
      if(CMAKE_MATCH_COUNT EQUAL 2)
        list(APPEND version ${CMAKE_MATCH_2})
      else()
        string(REPLACE "_" "." only "${CMAKE_MATCH_1}")
        set(version ${only})
      endif()
    endif()
  endforeach()
  list(JOIN version "." version)
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

set(created "1970-01-01T00:00:00Z")
if(DEFINED ENV{SOURCE_DATE_EPOCH})
  string(TIMESTAMP created "%Y-%m-%dT%H:%M:%SZ" UTC)
endif()
set(sbom "{
  \"spdxVersion\": \"SPDX-2.3\",
  \"dataLicense\": \"CC0-1.0\",
  \"SPDXID\": \"SPDXRef-DOCUMENT\",
  \"name\": \"cddp-${PROJECT_VERSION}\",
  \"documentNamespace\": \"urn:cddp:sbom:${PROJECT_VERSION}\",
  \"creationInfo\": {\"created\": \"${created}\", \"creators\": [\"Tool: cddp-build-${PROJECT_VERSION}\"]},
  \"documentDescribes\": [\"SPDXRef-cddp\"],
  \"packages\": [
    {\"name\": \"cddp\", \"SPDXID\": \"SPDXRef-cddp\", \"versionInfo\": \"${PROJECT_VERSION}\", \"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": false, \"licenseConcluded\": \"Apache-2.0\", \"licenseDeclared\": \"Apache-2.0\", \"copyrightText\": \"2026 The cddp authors\"}")
set(relations "\n    {\"spdxElementId\": \"SPDXRef-DOCUMENT\", \"relationshipType\": \"DESCRIBES\", \"relatedSpdxElement\": \"SPDXRef-cddp\"}")
set(licences "")
file(STRINGS ${PROJECT_SOURCE_DIR}/packaging/parts.txt rows REGEX "^[a-z]")
foreach(row ${rows})
  string(REGEX MATCH "^([^|]+)[|]([^|]+)[|]([^|]+)[|]([^|]+)[|]([^|]+)[|](.+)$" row "${row}")
  set(name ${CMAKE_MATCH_1})
  set(licence ${CMAKE_MATCH_2})
  set(use ${CMAKE_MATCH_3})
  set(where ${CMAKE_MATCH_4})
  set(origin ${CMAKE_MATCH_5})
  cddp_part_version(version "${CMAKE_MATCH_6}")
  if(NOT version)
    set(version NOASSERTION)
  endif()
  string(APPEND sbom ",\n    {\"name\": \"${name}\", \"SPDXID\": \"SPDXRef-${name}\", \"versionInfo\": \"${version}\", \"downloadLocation\": \"${origin}\", \"filesAnalyzed\": false, \"licenseConcluded\": \"${licence}\", \"licenseDeclared\": \"${licence}\", \"copyrightText\": \"NOASSERTION\", \"comment\": \"${use}: ${where}\"}")
  if(use STREQUAL contained)
    set(kind CONTAINS)
    list(APPEND licences ${PROJECT_SOURCE_DIR}/packaging/licenses/${name}.txt)
  elseif(use STREQUAL linked)
    set(kind DEPENDS_ON)
  else()
    set(kind OPTIONAL_DEPENDENCY_OF)
  endif()
  if(kind STREQUAL OPTIONAL_DEPENDENCY_OF)
    string(APPEND relations ",\n    {\"spdxElementId\": \"SPDXRef-${name}\", \"relationshipType\": \"${kind}\", \"relatedSpdxElement\": \"SPDXRef-cddp\"}")
  else()
    string(APPEND relations ",\n    {\"spdxElementId\": \"SPDXRef-cddp\", \"relationshipType\": \"${kind}\", \"relatedSpdxElement\": \"SPDXRef-${name}\"}")
  endif()
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/packaging/cddp.spdx.json @ONLY CONTENT "@sbom@\n  ],\n  \"relationships\": [@relations@\n  ]\n}\n")
foreach(pair runtime:libcddp0 dev:libcddp-dev tools:cddp-verify)
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 component)
  list(GET pair 1 package)
  install(FILES ${CMAKE_BINARY_DIR}/packaging/cddp.spdx.json DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${component})
  install(FILES ${licences} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package}/licenses COMPONENT ${component})
endforeach()
