/**
 * An interpreter of the documented line protocol in shell: the parity of engines is about its being warm, not about a language, and a
 * Debian with Python takes minutes to boot under two emulations.
 */
export const evaluator = `base: busybox
memory: 96M
files:
  - path: /bin/evaluator
    mode: "0755"
    content: |
      #!/bin/sh
      count=0
      echo '{"type":"ready","language":"sh","version":"1"}'
      while read -r line; do
        id=$(echo "$line" | sed 's/.*"id":"\\{0,1\\}\\([^",}]*\\).*/\\1/')
        case $line in *'"id":"'*) id="\\"$id\\"" ;; esac
        case $line in
          *'"code":"count"'*) count=$((count + 1)); value=$count ;;
          *'"code":"where"'*) value=$(hostname) ;;
          *) value=other ;;
        esac
        echo "{\\"type\\":\\"result\\",\\"id\\":$id,\\"value\\":\\"$value\\",\\"error\\":null}"
      done
interpreters:
  - name: shell
    command: /bin/evaluator
    init: count
prime:
  - other
`;
